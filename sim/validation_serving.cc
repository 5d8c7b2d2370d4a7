#include "sim/validation_serving.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "sim/tape.h"
#include "sim/zipf.h"

namespace ravenstore::sim {

namespace {

constexpr double kWeightBytes = 16e9;
constexpr double kBlockTokens = 16;
constexpr double kBlockBytes = 16 * 131072;
constexpr size_t kPrompts = 6;
constexpr size_t kDocuments = 96;
constexpr double kExponent = 1.0;
constexpr size_t kRunning = 24;
// Conversations that may go on, and how many requests each has in the mean.
constexpr size_t kIdle = 32;
constexpr double kTurns = 3;
// How many turns of the running requests an iteration has.
constexpr int kRounds = 8;
// Documents that are there from the beginning, the most popular ones.
constexpr size_t kWarm = 24;
// New conversations until a document is replaced by another.
constexpr int kDocumentAge = 6;
// Blocks of a prompt that are computed together.
constexpr size_t kChunk = 32;

// A part of a prompt, with what it stands on. Its blocks are freed with the last that stands on it.
struct Prefix {
  std::shared_ptr<const Prefix> parent;
  std::vector<Data> blocks;
};

class Server {
 public:
  explicit Server(Tape* tape) : tape_(*tape), documents_(kDocuments) {
    for (size_t i = 0; i < kPrompts; ++i) prompts_.push_back(Filled(nullptr, Between(32, 96)));
    for (size_t i = 0; i < kWarm; ++i) documents_[i] = NewDocument();
  }

  void Serve() {
    for (int round = 0; round < kRounds; ++round) {
      while (running_.size() < kRunning) running_.push_back(Begun());
      for (Request& request : running_) Decode(&request);
      std::erase_if(running_, [this](Request& request) { return Ended(&request); });
      tape_.Step();
    }
  }

 private:
  struct Request {
    std::shared_ptr<Prefix> conversation;
    size_t left;  // blocks that it will decode
  };

  size_t Between(size_t least, size_t most) {
    return least + static_cast<size_t>(Unit(tape_.random()) * static_cast<double>(most - least));
  }
  static std::vector<Data> BlocksOf(const Prefix& prefix) {
    std::vector<Data> all = prefix.blocks;
    for (const Prefix* at = prefix.parent.get(); at != nullptr; at = at->parent.get())
      all.insert(all.begin(), at->blocks.begin(), at->blocks.end());
    return all;
  }
  // Computes this many more blocks of a prompt, chunk by chunk, each of which reads all before it.
  void Fill(Prefix* prefix, size_t blocks) {
    for (size_t done = 0; done < blocks; done += kChunk) {
      const size_t count = std::min(kChunk, blocks - done);
      // Two operations a token and weight, of two bytes each.
      const double flops = static_cast<double>(count) * kBlockTokens * kWeightBytes;
      const auto made =
          tape_.Run({.seconds = tape_.ProductSeconds(flops), .reads = BlocksOf(*prefix)},
                    std::vector<double>(count, kBlockBytes));
      prefix->blocks.insert(prefix->blocks.end(), made.begin(), made.end());
    }
  }
  std::shared_ptr<Prefix> Filled(std::shared_ptr<const Prefix> parent, size_t blocks) {
    auto prefix = std::make_shared<Prefix>();
    prefix->parent = std::move(parent);
    Fill(prefix.get(), blocks);
    return prefix;
  }
  std::shared_ptr<const Prefix> NewDocument() {
    const size_t prompt = Between(0, kPrompts);
    return Filled(prompts_[prompt], Between(128, 384));
  }
  // Another turn of a conversation, or a new one about a document.
  Request Begun() {
    std::shared_ptr<Prefix> conversation;
    if (!idle_.empty() && Unit(tape_.random()) < 1 - 1 / kTurns) {
      const size_t which = Between(0, idle_.size());
      conversation = std::move(idle_[which]);
      idle_.erase(idle_.begin() + static_cast<ptrdiff_t>(which));
    } else {
      if (++begun_ % kDocumentAge == 0) documents_[Between(0, kDocuments)] = nullptr;
      std::shared_ptr<const Prefix>& document = documents_[zipf_(tape_.random())];
      if (document == nullptr) document = Filled(prompts_[Between(0, kPrompts)], Between(48, 192));
      conversation = Filled(document, 0);
    }
    Fill(conversation.get(), Between(1, 16));  // the question
    return {std::move(conversation), Between(2, 24)};
  }
  // The weights are read for all that run; what each stands on for it alone.
  void Decode(Request* request) {
    const std::vector<Data> blocks = BlocksOf(*request->conversation);
    const double weights = kWeightBytes / static_cast<double>(kRunning);
    const double cache = kBlockBytes * static_cast<double>(blocks.size());
    const double bytes = kBlockTokens * (weights + cache);
    request->conversation->blocks.push_back(
        tape_.Run({.reads = blocks, .traffic = bytes}, kBlockBytes));
    --request->left;
  }
  bool Ended(Request* request) {
    if (request->left > 0) return false;
    idle_.push_back(std::move(request->conversation));
    if (idle_.size() > kIdle) idle_.pop_front();
    return true;
  }

  Tape& tape_;
  std::vector<std::shared_ptr<const Prefix>> prompts_;
  std::vector<std::shared_ptr<const Prefix>> documents_;
  const Zipf zipf_{kDocuments, kExponent};
  int begun_ = 0;
  std::vector<Request> running_;
  std::deque<std::shared_ptr<Prefix>> idle_;
};

}  // namespace

Trace PrefixCache(const Hardware& hardware, int iterations, uint64_t seed) {
  Tape tape("prefix-cache", hardware, seed);
  {
    Server server(&tape);
    tape.EndSetUp();
    for (int i = 0; i < iterations; ++i) server.Serve();
  }
  return tape.Take();
}

}  // namespace ravenstore::sim
