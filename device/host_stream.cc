#include "device/host_stream.h"

#include <pthread.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace ravenstore::device {
namespace {

// Yields first, because most waits are over soon, and then sleeps a little, so that a stream that
// is held for long does not take a core from those who would release it.
void Await(const Word& word, uint64_t value) {
  for (int turn = 0; word.load(std::memory_order_acquire) < value; ++turn) {
    if (turn < 200) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(turn < 400 ? 20 : 200));
    }
  }
}

// The calling thread as a stream: everything is done when the call returns.
// The holder's; the stream keeps what it writes when it comes there.
class HostMark : public StreamMark {
 public:
  struct Passing {
    std::chrono::steady_clock::time_point at;
    std::atomic<bool> done{false};
    void Pass() {
      at = std::chrono::steady_clock::now();
      done.store(true, std::memory_order_release);
    }
  };
  explicit HostMark(std::shared_ptr<const Passing> passing) : passing_(std::move(passing)) {}
  Result<bool> Reached() const override { return passing_->done.load(std::memory_order_acquire); }
  Result<core::Duration> Since(const StreamMark& earlier) const override {
    const auto& other = dynamic_cast<const HostMark&>(earlier);
    return core::Duration(passing_->at - other.passing_->at);
  }

 private:
  const std::shared_ptr<const Passing> passing_;
};

class CallerStream : public Stream {
 public:
  Status SignalAfter(Word* word, uint64_t value) override {
    word->store(value, std::memory_order_release);
    return core::Ok();
  }
  Status Wait(Word* word, uint64_t value) override {
    if (word->load(std::memory_order_acquire) >= value) return core::Ok();
    return core::Error{core::ErrorCode::kWrongState,
                       "a wait on the host backend's default stream, which is the calling thread, "
                       "would never end"};
  }
  Status Copy(void* to, const void* from, Bytes bytes) override {
    memcpy(to, from, bytes.count());
    return core::Ok();
  }
  Status Fill(void* to, uint8_t value, Bytes bytes) override {
    memset(to, value, bytes.count());
    return core::Ok();
  }
  Result<bool> Capturing() override { return false; }
  Status Synchronize() override { return core::Ok(); }
  Result<std::unique_ptr<StreamMark>> Mark() override {
    const auto passing = std::make_shared<HostMark::Passing>();
    passing->Pass();
    return std::unique_ptr<StreamMark>(new HostMark(passing));
  }
  bool synchronous() const override { return true; }
};

class QueueStream : public Stream {
 public:
  explicit QueueStream(HostStream* queue) : queue_(*queue) {}

  Status SignalAfter(Word* word, uint64_t value) override {
    queue_.Run([word, value] { word->store(value, std::memory_order_release); });
    return core::Ok();
  }
  Status Wait(Word* word, uint64_t value) override {
    queue_.Run([word, value] { Await(*word, value); });
    return core::Ok();
  }
  Status Copy(void* to, const void* from, Bytes bytes) override {
    queue_.Run([to, from, bytes] { memcpy(to, from, bytes.count()); });
    return core::Ok();
  }
  Status Fill(void* to, uint8_t value, Bytes bytes) override {
    queue_.Run([to, value, bytes] { memset(to, value, bytes.count()); });
    return core::Ok();
  }
  Result<bool> Capturing() override { return queue_.capturing(); }
  Status Synchronize() override {
    queue_.Synchronize();
    return core::Ok();
  }
  Result<std::unique_ptr<StreamMark>> Mark() override {
    const auto passing = std::make_shared<HostMark::Passing>();
    queue_.Run([passing] { passing->Pass(); });
    return std::unique_ptr<StreamMark>(new HostMark(passing));
  }
  bool synchronous() const override { return false; }

 private:
  HostStream& queue_;
};

// The host streams of this process. Never destroyed: a stream may end at any time.
struct Registry {
  std::mutex mutex;
  std::set<HostStream*> streams;
};
Registry& TheRegistry() {
  static auto* registry = new Registry;
  return *registry;
}

// Every host stream that there is.
class EveryStream : public Stream {
 public:
  Status SignalAfter(Word* word, uint64_t value) override {
    std::lock_guard lock(TheRegistry().mutex);
    const auto left = std::make_shared<std::atomic<size_t>>(TheRegistry().streams.size() + 1);
    const auto pass = [left, word, value] {
      if (left->fetch_sub(1, std::memory_order_acq_rel) == 1)
        word->store(value, std::memory_order_release);
    };
    for (HostStream* stream : TheRegistry().streams) stream->Run(pass);
    pass();
    return core::Ok();
  }
  Status Wait(Word*, uint64_t) override { return NothingCanBeEnqueued(); }
  Status Copy(void*, const void*, Bytes) override { return NothingCanBeEnqueued(); }
  Status Fill(void*, uint8_t, Bytes) override { return NothingCanBeEnqueued(); }
  Result<bool> Capturing() override { return false; }
  Status Synchronize() override { return NothingCanBeEnqueued(); }
  Result<std::unique_ptr<StreamMark>> Mark() override { return NothingCanBeEnqueued(); }
  bool synchronous() const override { return false; }
  // Two signals after it are not in one order with what is enqueued between them.
  bool per_thread() const override { return true; }
};

}  // namespace

HostStream::HostStream() {
  worker_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "raven-stream");
    Work();
  });
  std::lock_guard lock(TheRegistry().mutex);
  TheRegistry().streams.insert(this);
}

HostStream::~HostStream() {
  // While it has work it is one of those that others wait for.
  Synchronize();
  {
    std::lock_guard lock(TheRegistry().mutex);
    TheRegistry().streams.erase(this);
  }
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    arrived_.notify_one();
  }
  worker_.join();
}

void HostStream::Run(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  ++enqueued_;
  // A busy worker looks at the queue again before it sleeps.
  if (idle_) arrived_.notify_one();
}

void HostStream::Synchronize() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this, upto = enqueued_] { return done_ >= upto; });
}

void HostStream::Work() {
  std::deque<std::function<void()>> batch;
  std::unique_lock lock(mutex_);
  while (true) {
    idle_ = true;
    arrived_.wait(lock, [this] { return !queue_.empty() || closing_; });
    idle_ = false;
    if (queue_.empty()) return;
    batch.swap(queue_);
    lock.unlock();
    const uint64_t count = batch.size();
    for (auto& work : batch) work();
    batch.clear();
    lock.lock();
    done_ += count;
    finished_.notify_all();
  }
}

std::unique_ptr<Stream> WrapHostStream(StreamHandle handle) {
  if (handle == nullptr) return std::make_unique<CallerStream>();
  if (handle == AllStreams()) return std::make_unique<EveryStream>();
  return std::make_unique<QueueStream>(static_cast<HostStream*>(handle));
}

}  // namespace ravenstore::device
