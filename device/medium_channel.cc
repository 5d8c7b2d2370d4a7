#include "device/medium_channel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"

namespace ravenstore::device {
namespace {

// Between looks at what a channel that ends waits for.
void Nap() {
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

// Where chunks that go between a medium and a device lie on their way.
struct Staging {
  std::unique_ptr<VaRange> ring;     // outlives the channel
  std::unique_ptr<Channel> channel;  // between the ring and the device
  Word copied{0};                    // so many chunks have gone over it
};

// A pipeline of one stage or two, through which chunks go in order: between memory and medium; and
// between ring and device, before it or behind it.
class MediumChannel : public Channel {
 public:
  MediumChannel(MediumAccess access, const MediumChannelOptions& options,
                std::unique_ptr<Staging> staging)
      : access_(access), options_(options), staging_(std::move(staging)) {
    stages_.push_back({Stage::Kind::kMedium});
    if (staging_ == nullptr) return;
    const bool last = access == MediumAccess::kRead;
    stages_.insert(last ? stages_.end() : stages_.begin(), {Stage::Kind::kDevice});
  }

  ~MediumChannel() override {
    while (Health().ok() && retired_ < queued_) Nap();
    // What the medium has begun still touches the memory.
    for (const Stage& stage : stages_) {
      if (stage.kind != Stage::Kind::kMedium) continue;
      for (uint64_t i = stage.ended; i < stage.begun; ++i) {
        while (!ChunkAt(i).over.load(std::memory_order_acquire)) Nap();
      }
    }
  }

  Status Copy(Target to, Source from, Bytes bytes) override {
    RAVEN_RETURN_IF_ERROR(failure_);
    RAVEN_RETURN_IF_ERROR(Check(to, from, bytes));
    for (Bytes done; done < bytes; done += options_.chunk) {
      chunks_.emplace_back(to + done, from + done, std::min(options_.chunk, bytes - done));
      ++queued_;
    }
    Advance();
    return core::Ok();
  }

  Status Signal(Word* word, uint64_t value) override {
    RAVEN_RETURN_IF_ERROR(failure_);
    signals_.push_back({queued_, word, value});
    return core::Ok();
  }

  void Poll() override { Advance(); }

  Status Health() override {
    Advance();
    if (failure_.ok() && staging_ != nullptr) failure_ = staging_->channel->Health();
    return failure_;
  }

 private:
  struct Chunk {
    Chunk(Target target, Source source, Bytes size) : to(target), from(source), bytes(size) {}

    const Target to;
    const Source from;
    const Bytes bytes;
    Result<Bytes> moved{Bytes{}};   // by the medium, once it is over
    std::atomic<bool> over{false};  // set last, by the medium's thread
  };
  struct Stage {
    enum class Kind : uint8_t { kMedium, kDevice };
    Kind kind;
    uint64_t begun = 0;  // chunks, in order
    uint64_t ended = 0;
  };
  struct DueSignal {
    uint64_t after;  // chunks retired
    Word* word;
    uint64_t value;
  };

  Status Check(Target to, Source from, Bytes bytes) const {
    const bool reads = access_ == MediumAccess::kRead;
    const Medium* medium = reads ? from.medium() : to.medium();
    if (medium == nullptr || (reads ? to.medium() : from.medium()) != nullptr) {
      return core::Error{core::ErrorCode::kInvalidArgument,
                         reads ? "this channel copies from a medium to memory"
                               : "this channel copies from memory to a medium"};
    }
    const Bytes offset = reads ? from.offset() : to.offset();
    const uint64_t unit = medium->granularity().count();
    if (offset.count() % unit != 0 || options_.chunk.count() % unit != 0) {
      return core::Error{core::ErrorCode::kInvalidArgument,
                         medium->name() + ": places and chunks must be multiples of " +
                             std::to_string(unit) + " bytes"};
    }
    if (offset > medium->size() || bytes > medium->size() - offset) {
      return core::Error{core::ErrorCode::kInvalidArgument,
                         medium->name() + ": " + std::to_string(bytes.count()) + " bytes at " +
                             std::to_string(offset.count()) + " reach past its " +
                             std::to_string(medium->size().count())};
    }
    return core::Ok();
  }

  Chunk& ChunkAt(uint64_t number) { return chunks_[number - retired_]; }
  std::byte* SlotOf(uint64_t number) const {
    return staging_->ring->base() + number % options_.depth * options_.chunk.count();
  }

  void Advance() {
    if (!failure_.ok()) return;
    if (staging_ != nullptr) staging_->channel->Poll();
    for (Stage& stage : stages_) End(stage);
    Retire();
    uint64_t ready = std::min(queued_, retired_ + options_.depth);
    for (Stage& stage : stages_) {
      Begin(stage, ready);
      ready = stage.ended;
    }
  }

  // A failure counts once all before it is done, so that what precedes it is signalled.
  void End(Stage& stage) {
    for (; stage.ended < stage.begun; ++stage.ended) {
      if (stage.kind == Stage::Kind::kDevice) {
        if (staging_->copied.load(std::memory_order_acquire) <= stage.ended) return;
        continue;
      }
      const Chunk& chunk = ChunkAt(stage.ended);
      if (!chunk.over.load(std::memory_order_acquire)) return;
      const Status moved = Outcome(chunk);
      if (!moved.ok()) {
        if (stage.ended == retired_) failure_ = moved;
        return;
      }
    }
  }

  Status Outcome(const Chunk& chunk) const {
    RAVEN_RETURN_IF_ERROR(chunk.moved);
    if (*chunk.moved == chunk.bytes) return core::Ok();
    const bool reads = access_ == MediumAccess::kRead;
    const Medium& medium = *(reads ? chunk.from.medium() : chunk.to.medium());
    const Bytes offset = reads ? chunk.from.offset() : chunk.to.offset();
    return core::Error{core::ErrorCode::kSystem,
                       medium.name() + (reads ? ": a read of " : ": a write of ") +
                           std::to_string(chunk.bytes.count()) + " bytes at " +
                           std::to_string(offset.count()) + " ended after " +
                           std::to_string(chunk.moved->count())};
  }

  void Retire() {
    for (; retired_ < stages_.back().ended; ++retired_) chunks_.pop_front();
    for (; !signals_.empty() && signals_.front().after <= retired_; signals_.pop_front()) {
      signals_.front().word->store(signals_.front().value, std::memory_order_release);
    }
  }

  // Chunks before number `ready` have come so far.
  void Begin(Stage& stage, uint64_t ready) {
    while (failure_.ok() && stage.begun < ready) {
      if (stage.kind == Stage::Kind::kDevice) {
        failure_ = BeginDevice(stage.begun);
      } else if (Conflicts(stage)) {
        return;
      } else {
        BeginMedium(stage.begun);
      }
      ++stage.begun;
    }
  }

  // A medium's transfers are done in any order, but those to one place must not be.
  bool Conflicts(const Stage& stage) {
    const Chunk& next = ChunkAt(stage.begun);
    for (uint64_t i = stage.ended; i < stage.begun; ++i) {
      if (Overlap(ChunkAt(i), next)) return true;
    }
    return false;
  }
  static bool Overlap(const Chunk& a, const Chunk& b) {
    if (a.to.medium() != b.to.medium()) return false;
    const auto begin = [](const Chunk& chunk) {
      return chunk.to.medium() == nullptr ? reinterpret_cast<uintptr_t>(chunk.to.address())
                                          : chunk.to.offset().count();
    };
    const auto end = [&](const Chunk& chunk) {
      const Medium* medium = chunk.to.medium();
      return begin(chunk) +
             (medium == nullptr ? chunk.bytes : chunk.bytes.RoundUp(medium->granularity())).count();
    };
    return begin(a) < end(b) && begin(b) < end(a);
  }

  void BeginMedium(uint64_t number) {
    Chunk& chunk = ChunkAt(number);
    const auto completion = [&chunk](Result<Bytes> moved) {
      chunk.moved = std::move(moved);
      chunk.over.store(true, std::memory_order_release);
    };
    if (access_ == MediumAccess::kRead) {
      std::byte* to = staging_ == nullptr ? chunk.to.address() : SlotOf(number);
      chunk.from.medium()->Read(chunk.from.offset(), to, chunk.bytes, completion);
    } else {
      const std::byte* from = staging_ == nullptr ? chunk.from.address() : SlotOf(number);
      chunk.to.medium()->Write(chunk.to.offset(), from, chunk.bytes, completion);
    }
  }

  Status BeginDevice(uint64_t number) {
    const Chunk& chunk = ChunkAt(number);
    Channel& channel = *staging_->channel;
    if (access_ == MediumAccess::kRead) {
      RAVEN_RETURN_IF_ERROR(channel.Copy(chunk.to, SlotOf(number), chunk.bytes));
    } else {
      RAVEN_RETURN_IF_ERROR(channel.Copy(SlotOf(number), chunk.from, chunk.bytes));
    }
    return channel.Signal(&staging_->copied, number + 1);
  }

  const MediumAccess access_;
  const MediumChannelOptions options_;
  const std::unique_ptr<Staging> staging_;  // null: the memory is the CPU's
  std::vector<Stage> stages_;
  std::deque<Chunk> chunks_;  // those not retired; their addresses stay
  uint64_t queued_ = 0;
  uint64_t retired_ = 0;
  std::deque<DueSignal> signals_;  // oldest first
  Status failure_ = core::Ok();
};

}  // namespace

std::unique_ptr<Channel> OpenMediumChannel(MediumAccess access,
                                           const MediumChannelOptions& options) {
  RAVEN_CHECK(options.chunk > Bytes{});
  RAVEN_CHECK(options.depth > 0);
  return std::make_unique<MediumChannel>(access, options, nullptr);
}

Result<std::unique_ptr<Channel>> OpenMediumChannel(Device& device, MediumAccess access,
                                                   const MediumChannelOptions& options) {
  RAVEN_CHECK(options.chunk > Bytes{});
  RAVEN_CHECK(options.depth > 0);
  auto staging = std::make_unique<Staging>();
  const Bytes bytes = (options.chunk * options.depth).RoundUp(device.granularity());
  RAVEN_ASSIGN_OR_RETURN(staging->ring, device.ReserveHostVaRange(bytes, device.info().numa_node));
  RAVEN_RETURN_IF_ERROR(staging->ring->Create(Bytes{}, bytes));
  RAVEN_ASSIGN_OR_RETURN(staging->channel, device.OpenChannel(access == MediumAccess::kRead
                                                                  ? Direction::kHostToDevice
                                                                  : Direction::kDeviceToHost));
  return std::unique_ptr<Channel>(
      std::make_unique<MediumChannel>(access, options, std::move(staging)));
}

}  // namespace ravenstore::device
