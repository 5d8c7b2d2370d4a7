// Streams, events and words.
#include <poll.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

// One recording of an event.
struct Record {
  std::atomic<uint64_t> at{0};  // nanoseconds
  std::atomic<bool> done{false};
  void Pass() {
    at = Nanoseconds();
    done = true;
  }
};

}  // namespace

uint64_t Nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void Nap(uint64_t nanoseconds) {
  const timespec nap{static_cast<time_t>(nanoseconds / 1'000'000'000),
                     static_cast<long>(nanoseconds % 1'000'000'000)};
  ppoll(nullptr, 0, &nap, nullptr);
}

void Pause(int turn) {
  if (turn < 200) {
    std::this_thread::yield();
  } else {
    Nap(50'000);
  }
}

}  // namespace fake_cuda

struct CUevent_st {
  const bool timed;
  std::shared_ptr<fake_cuda::Record> latest;  // guarded by the streams' mutex
};

// An in-order queue with a thread of its own, which ends once the stream is destroyed and the queue
// is empty. The thread shares ownership, so that destroying a stream never waits.
struct CUstream_st : std::enable_shared_from_this<CUstream_st> {
  struct Item {
    std::function<void()> work;
    bool always;  // also in a context that failed
  };

  explicit CUstream_st(CUcontext in, bool no_blocking = false)
      : context(in), non_blocking(no_blocking) {}

  void Run(std::function<void()> work) {
    std::lock_guard lock(mutex);
    Push({std::move(work), false});
  }

  void RunInOrder(std::function<void()> work) {
    {
      std::lock_guard lock(mutex);
      if (!queue.empty()) return Push({std::move(work), true});
    }
    work();
  }

  // Under the mutex.
  void Push(Item item) {
    queue.push_back(std::move(item));
    if (!started) std::thread([self = shared_from_this()] { self->Work(); }).detach();
    started = true;
    changed.notify_all();
  }

  void Work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !queue.empty() || closing; });
      if (queue.empty()) return;
      Item item = std::move(queue.front());
      lock.unlock();
      if (item.always || context->error.load() == CUDA_SUCCESS) item.work();
      item.work = nullptr;
      lock.lock();
      queue.pop_front();
      if (queue.empty()) changed.notify_all();
    }
  }

  void Synchronize() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return queue.empty(); });
  }

  void Close() {
    std::lock_guard lock(mutex);
    closing = true;
    changed.notify_all();
  }

  const CUcontext context;
  const bool non_blocking;
  std::mutex mutex;
  std::condition_variable changed;
  // The front is being done while it is there. Guarded by mutex, as the two below.
  std::deque<Item> queue;
  bool started = false;
  bool closing = false;
  // What the captured calls become; of the thread that captures.
  CUgraph graph = nullptr;
  std::atomic<bool> capturing{false};
  std::atomic<bool> capture_broken{false};
};

namespace fake_cuda {
namespace {

// A thread's own default streams, one for each context. Their queues outlive the thread.
struct OwnStreams {
  ~OwnStreams() {
    for (const auto& [context, stream] : by_context) stream->Close();
  }
  std::map<CUcontext, std::shared_ptr<CUstream_st>> by_context;
};
thread_local OwnStreams own_streams;

// Of the calling thread: what captures elsewhere forbid it.
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

struct Streams {
  std::mutex mutex;
  std::map<CUstream, std::shared_ptr<CUstream_st>> known;
  std::map<CUcontext, std::shared_ptr<CUstream_st>> legacy;
  std::set<CUevent> events;
  // How many streams are held in a wait-value.
  std::mutex held_mutex;
  std::condition_variable released;
  int held = 0;
};

Streams& streams() {
  static Streams* instance = new Streams;
  return *instance;
}

std::shared_ptr<CUstream_st> Find(CUstream stream, CUcontext context) {
  if (stream == CU_STREAM_PER_THREAD) {
    auto& own = own_streams.by_context[context];
    if (own == nullptr) own = std::make_shared<CUstream_st>(context);
    return own;
  }
  std::lock_guard lock(streams().mutex);
  if (stream == nullptr || stream == CU_STREAM_LEGACY) {
    auto& legacy = streams().legacy[context];
    if (legacy == nullptr) legacy = std::make_shared<CUstream_st>(context);
    return legacy;
  }
  const auto known = streams().known.find(stream);
  return known == streams().known.end() ? nullptr : known->second;
}

// What an event's latest record is; false: no such event.
bool LatestOf(CUevent event, std::shared_ptr<Record>* record) {
  std::lock_guard lock(streams().mutex);
  if (streams().events.count(event) == 0) return false;
  *record = event->latest;
  return true;
}

// A new record of an event; null: no such event.
std::shared_ptr<Record> NewRecord(CUevent event) {
  std::lock_guard lock(streams().mutex);
  if (streams().events.count(event) == 0) return nullptr;
  return event->latest = std::make_shared<Record>();
}

// All streams of a context but the threads' own.
std::vector<std::shared_ptr<CUstream_st>> AllOf(CUcontext context) {
  std::vector<std::shared_ptr<CUstream_st>> all;
  std::lock_guard lock(streams().mutex);
  for (const auto& [handle, stream] : streams().known) {
    if (stream->context == context) all.push_back(stream);
  }
  const auto legacy = streams().legacy.find(context);
  if (legacy != streams().legacy.end()) all.push_back(legacy->second);
  return all;
}

void AwaitValue(const CUstream_st& stream, const std::atomic<uint64_t>& word, uint64_t value) {
  const auto reached = [&] {
    return static_cast<int64_t>(word.load(std::memory_order_acquire) - value) >= 0;
  };
  if (reached()) return;
  {
    std::lock_guard lock(streams().held_mutex);
    ++streams().held;
  }
  for (int turn = 0; !reached() && stream.context->error.load() == CUDA_SUCCESS; ++turn) {
    Pause(turn);
  }
  std::lock_guard lock(streams().held_mutex);
  --streams().held;
  streams().released.notify_all();
}

}  // namespace

bool OffendsCapture() {
  if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  bool offends = false;
  std::lock_guard lock(streams().mutex);
  for (const auto& [handle, stream] : streams().known) {
    if (!stream->capturing) continue;
    offends = true;
    stream->capture_broken = true;
  }
  return offends;
}

CUresult Enqueue(CUstream handle, CUcontext context, Work work) {
  const auto stream = Find(handle, context);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capturing) {
    AddNode(stream->graph, std::move(work));
  } else {
    stream->Run([run = std::move(work.run), in = stream->context] { run(in); });
  }
  return CUDA_SUCCESS;
}

bool RunInOrder(CUstream handle, CUcontext context, std::function<void()> work) {
  const auto stream = Find(handle, context);
  if (stream == nullptr) return false;
  stream->RunInOrder(std::move(work));
  return true;
}

void Synchronize(CUcontext context, bool non_blocking_too) {
  for (const auto& stream : AllOf(context)) {
    if (non_blocking_too || !stream->non_blocking) stream->Synchronize();
  }
  const auto own = own_streams.by_context.find(context);
  if (own != own_streams.by_context.end()) own->second->Synchronize();
}

void AwaitNoHeldStream() {
  std::unique_lock lock(streams().held_mutex);
  streams().released.wait(lock, [] { return streams().held == 0; });
}

}  // namespace fake_cuda

using fake_cuda::streams;

// Finds the stream `handle` as `stream`, or returns.
#define FAKE_CUDA_STREAM(handle)                        \
  const auto stream = fake_cuda::Find(handle, context); \
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE

// Nothing that is enqueued on a captured stream is modelled.
#define FAKE_CUDA_NOT_CAPTURED \
  if (stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

CUresult cuStreamCreate(CUstream* handle, unsigned int flags) {
  FAKE_CUDA_CONTEXT("cuStreamCreate");
  if ((flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
  auto stream = std::make_shared<CUstream_st>(context, flags != 0);
  *handle = stream.get();
  std::lock_guard lock(streams().mutex);
  streams().known[*handle] = std::move(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned int flags, int) {
  return cuStreamCreate(handle, flags);
}

CUresult cuStreamDestroy(CUstream handle) {
  FAKE_CUDA_CLEAN_UP("cuStreamDestroy");
  std::lock_guard lock(streams().mutex);
  const auto known = streams().known.find(handle);
  if (known == streams().known.end()) return CUDA_ERROR_INVALID_HANDLE;
  known->second->Close();
  streams().known.erase(known);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  FAKE_CUDA_CONTEXT("cuStreamSynchronize");
  FAKE_CUDA_STREAM(handle);
  FAKE_CUDA_NOT_CAPTURED;
  stream->Synchronize();
  fake_cuda::ShrinkPools(false);
  return stream->context->error;
}

CUresult cuStreamQuery(CUstream handle) {
  FAKE_CUDA_CONTEXT("cuStreamQuery");
  FAKE_CUDA_STREAM(handle);
  std::lock_guard lock(stream->mutex);
  return stream->queue.empty() ? stream->context->error.load() : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* its_context) {
  FAKE_CUDA_ENTER("cuStreamGetCtx");
  const auto stream = fake_cuda::Find(handle, nullptr);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *its_context = stream->context;
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode) {
  FAKE_CUDA_CONTEXT("cuStreamBeginCapture");
  FAKE_CUDA_STREAM(handle);
  FAKE_CUDA_NOT_CAPTURED;
  stream->graph = fake_cuda::NewGraph();
  stream->capturing = true;
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  FAKE_CUDA_CONTEXT("cuStreamEndCapture");
  FAKE_CUDA_STREAM(handle);
  if (!stream->capturing.exchange(false)) return CUDA_ERROR_ILLEGAL_STATE;
  CUgraph captured = std::exchange(stream->graph, nullptr);
  if (stream->capture_broken.exchange(false)) {
    cuGraphDestroy(captured);
    captured = nullptr;
  }
  *graph = captured;
  return captured != nullptr ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  FAKE_CUDA_CONTEXT("cuStreamIsCapturing");
  FAKE_CUDA_STREAM(handle);
  *status = stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(fake_cuda::capture_mode, *mode);
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  FAKE_CUDA_CONTEXT("cuEventCreate");
  constexpr unsigned int kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  *event = new CUevent_st{(flags & CU_EVENT_DISABLE_TIMING) == 0, nullptr};
  std::lock_guard lock(streams().mutex);
  streams().events.insert(*event);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  FAKE_CUDA_CLEAN_UP("cuEventDestroy");
  std::lock_guard lock(streams().mutex);
  if (streams().events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete event;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  FAKE_CUDA_CONTEXT("cuEventRecord");
  FAKE_CUDA_STREAM(handle);
  FAKE_CUDA_NOT_CAPTURED;
  auto record = fake_cuda::NewRecord(event);
  if (record == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->Run([record = std::move(record)] { record->Pass(); });
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxRecordEvent(CUcontext of, CUevent event) {
  FAKE_CUDA_CONTEXT("cuCtxRecordEvent");
  const auto all = fake_cuda::AllOf(of);
  for (const auto& stream : all) {
    if (stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  auto record = fake_cuda::NewRecord(event);
  if (record == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto left = std::make_shared<std::atomic<size_t>>(all.size() + 1);
  const auto pass = [left, record = std::move(record)] {
    if (left->fetch_sub(1) == 1) record->Pass();
  };
  for (const auto& stream : all) stream->Run(pass);
  pass();
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  FAKE_CUDA_CONTEXT("cuEventQuery");
  std::shared_ptr<fake_cuda::Record> latest;
  if (!fake_cuda::LatestOf(event, &latest)) return CUDA_ERROR_INVALID_HANDLE;
  return latest == nullptr || latest->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  FAKE_CUDA_CONTEXT("cuEventSynchronize");
  std::shared_ptr<fake_cuda::Record> latest;
  if (!fake_cuda::LatestOf(event, &latest)) return CUDA_ERROR_INVALID_HANDLE;
  for (int turn = 0; latest != nullptr && !latest->done && context->error == CUDA_SUCCESS; ++turn) {
    fake_cuda::Pause(turn);
  }
  fake_cuda::ShrinkPools(false);
  return context->error;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  FAKE_CUDA_CONTEXT("cuEventElapsedTime");
  std::shared_ptr<fake_cuda::Record> first;
  std::shared_ptr<fake_cuda::Record> second;
  if (!fake_cuda::LatestOf(begin, &first) || !fake_cuda::LatestOf(end, &second)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!begin->timed || !end->timed || first == nullptr || second == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!first->done || !second->done) return CUDA_ERROR_NOT_READY;
  const auto nanoseconds = static_cast<int64_t>(second->at - first->at);
  *milliseconds = static_cast<float>(static_cast<double>(nanoseconds) / 1e6);
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int) {
  FAKE_CUDA_CONTEXT("cuStreamWaitEvent");
  FAKE_CUDA_STREAM(handle);
  FAKE_CUDA_NOT_CAPTURED;
  std::shared_ptr<fake_cuda::Record> latest;
  if (!fake_cuda::LatestOf(event, &latest)) return CUDA_ERROR_INVALID_HANDLE;
  if (latest == nullptr) return CUDA_SUCCESS;
  stream->Run([record = std::move(latest), context] {
    for (int turn = 0; !record->done && context->error == CUDA_SUCCESS; ++turn) {
      fake_cuda::Pause(turn);
    }
  });
  return CUDA_SUCCESS;
}

CUresult cuStreamWriteValue64(CUstream handle, CUdeviceptr address, cuuint64_t value,
                              unsigned int) {
  FAKE_CUDA_CONTEXT("cuStreamWriteValue64");
  FAKE_CUDA_STREAM(handle);
  FAKE_CUDA_NOT_CAPTURED;
  auto* word = fake_cuda::ResolveWord(address);
  if (word == nullptr) return CUDA_ERROR_INVALID_VALUE;
  stream->Run([word, value] { word->store(value, std::memory_order_release); });
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitValue64(CUstream handle, CUdeviceptr address, cuuint64_t value,
                             unsigned int flags) {
  FAKE_CUDA_CONTEXT("cuStreamWaitValue64");
  FAKE_CUDA_STREAM(handle);
  FAKE_CUDA_NOT_CAPTURED;
  const auto* word = fake_cuda::ResolveWord(address);
  if (word == nullptr || flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
  stream->Run(
      [stream = stream.get(), word, value] { fake_cuda::AwaitValue(*stream, *word, value); });
  return CUDA_SUCCESS;
}

// The variants for per-thread default streams.
#undef cuEventRecord
#undef cuStreamSynchronize
#undef cuStreamQuery
#undef cuStreamWaitEvent
#undef cuStreamIsCapturing
extern "C" {
CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
  return cuEventRecord(event, FAKE_CUDA_PER_THREAD(stream));
}
CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  return cuStreamSynchronize(FAKE_CUDA_PER_THREAD(stream));
}
CUresult cuStreamQuery_ptsz(CUstream stream) {
  return cuStreamQuery(FAKE_CUDA_PER_THREAD(stream));
}
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
  return cuStreamWaitEvent(FAKE_CUDA_PER_THREAD(stream), event, flags);
}
CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus* status) {
  return cuStreamIsCapturing(FAKE_CUDA_PER_THREAD(stream), status);
}
}
