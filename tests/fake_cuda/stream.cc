// Streams, events, copies and words.
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
  std::atomic<bool> done{false};
};

// A GPU polls without a core; a thread that polls for long has to leave its core to others.
void Pause(int turn) {
  const timespec nap{0, 50'000};
  if (turn < 200) {
    std::this_thread::yield();
  } else {
    ppoll(nullptr, 0, &nap, nullptr);
  }
}

}  // namespace
}  // namespace fake_cuda

struct CUevent_st {
  std::shared_ptr<fake_cuda::Record> latest;
};

// An in-order queue with a thread of its own, which ends once the stream is destroyed and the queue
// is empty. The thread shares ownership, so that destroying a stream never waits.
struct CUstream_st : std::enable_shared_from_this<CUstream_st> {
  explicit CUstream_st(CUcontext in) : context(in) {}

  void Run(std::function<void()> work) {
    std::lock_guard lock(mutex);
    queue.push_back(std::move(work));
    if (!started) std::thread([self = shared_from_this()] { self->Work(); }).detach();
    started = true;
    changed.notify_all();
  }

  void Work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !queue.empty() || closing; });
      if (queue.empty()) return;
      auto work = std::move(queue.front());
      lock.unlock();
      if (context->error.load() == CUDA_SUCCESS) work();
      work = nullptr;
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
  std::mutex mutex;
  std::condition_variable changed;
  // The front is being done while it is there. Guarded by mutex, as the two below.
  std::deque<std::function<void()>> queue;
  bool started = false;
  bool closing = false;
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

bool IsEvent(CUevent event) {
  std::lock_guard lock(streams().mutex);
  return streams().events.count(event) == 1;
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

void CopySpans(std::vector<Span> to, std::vector<Span> from) {
  size_t i = 0;
  size_t j = 0;
  while (i < to.size()) {
    const size_t part = std::min(to[i].bytes, from[j].bytes);
    memcpy(to[i].begin, from[j].begin, part);
    to[i] = {to[i].begin + part, to[i].bytes - part};
    from[j] = {from[j].begin + part, from[j].bytes - part};
    if (to[i].bytes == 0) ++i;
    if (from[j].bytes == 0) ++j;
  }
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

CUresult cuStreamCreate(CUstream* handle, unsigned int) {
  FAKE_CUDA_CONTEXT("cuStreamCreate");
  auto stream = std::make_shared<CUstream_st>(context);
  *handle = stream.get();
  std::lock_guard lock(streams().mutex);
  streams().known[*handle] = std::move(stream);
  return CUDA_SUCCESS;
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
  stream->capturing = true;
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  FAKE_CUDA_CONTEXT("cuStreamEndCapture");
  FAKE_CUDA_STREAM(handle);
  stream->capturing = false;
  *graph = nullptr;
  return stream->capture_broken.exchange(false) ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                                : CUDA_SUCCESS;
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

CUresult cuEventCreate(CUevent* event, unsigned int) {
  FAKE_CUDA_CONTEXT("cuEventCreate");
  *event = new CUevent_st;
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
  if (!fake_cuda::IsEvent(event)) return CUDA_ERROR_INVALID_HANDLE;
  event->latest = std::make_shared<fake_cuda::Record>();
  stream->Run([record = event->latest] { record->done = true; });
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxRecordEvent(CUcontext of, CUevent event) {
  FAKE_CUDA_CONTEXT("cuCtxRecordEvent");
  if (!fake_cuda::IsEvent(event)) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<std::shared_ptr<CUstream_st>> all;
  {
    std::lock_guard lock(streams().mutex);
    for (const auto& [handle, stream] : streams().known) {
      if (stream->context == of) all.push_back(stream);
    }
    if (const auto legacy = streams().legacy.find(of); legacy != streams().legacy.end())
      all.push_back(legacy->second);
  }
  for (const auto& stream : all) {
    if (stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  event->latest = std::make_shared<fake_cuda::Record>();
  const auto left = std::make_shared<std::atomic<size_t>>(all.size() + 1);
  const auto pass = [left, record = event->latest] {
    if (left->fetch_sub(1) == 1) record->done = true;
  };
  for (const auto& stream : all) stream->Run(pass);
  pass();
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  FAKE_CUDA_CONTEXT("cuEventQuery");
  if (!fake_cuda::IsEvent(event)) return CUDA_ERROR_INVALID_HANDLE;
  return event->latest == nullptr || event->latest->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  FAKE_CUDA_CONTEXT("cuEventSynchronize");
  if (!fake_cuda::IsEvent(event)) return CUDA_ERROR_INVALID_HANDLE;
  const auto latest = event->latest;
  for (int turn = 0; latest != nullptr && !latest->done && context->error == CUDA_SUCCESS; ++turn) {
    fake_cuda::Pause(turn);
  }
  fake_cuda::ShrinkPools(false);
  return context->error;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int) {
  FAKE_CUDA_CONTEXT("cuStreamWaitEvent");
  FAKE_CUDA_STREAM(handle);
  FAKE_CUDA_NOT_CAPTURED;
  if (!fake_cuda::IsEvent(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (event->latest == nullptr) return CUDA_SUCCESS;
  stream->Run([record = event->latest, context] {
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

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  FAKE_CUDA_CONTEXT("cuMemcpyAsync");
  FAKE_CUDA_STREAM(handle);
  FAKE_CUDA_NOT_CAPTURED;
  std::vector<fake_cuda::Span> targets;
  std::vector<fake_cuda::Span> sources;
  if (!fake_cuda::Resolve(to, bytes, &targets) || !fake_cuda::Resolve(from, bytes, &sources)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  stream->Run([targets = std::move(targets), sources = std::move(sources), context] {
    for (int turn = 0; fake_cuda::CopiesHeld(); ++turn) fake_cuda::Pause(turn);
    if (fake_cuda::NextCopyFails()) {
      context->error = CUDA_ERROR_ILLEGAL_ADDRESS;
      return;
    }
    fake_cuda::CopySpans(targets, sources);
  });
  return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream handle) {
  FAKE_CUDA_CONTEXT("cuMemsetD8Async");
  FAKE_CUDA_STREAM(handle);
  FAKE_CUDA_NOT_CAPTURED;
  std::vector<fake_cuda::Span> targets;
  if (!fake_cuda::Resolve(to, bytes, &targets)) return CUDA_ERROR_INVALID_VALUE;
  stream->Run([targets = std::move(targets), value] {
    for (const auto& span : targets) memset(span.begin, value, span.bytes);
  });
  return CUDA_SUCCESS;
}
