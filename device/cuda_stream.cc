#include "device/cuda_stream.h"

#include <deque>
#include <utility>
#include <vector>

namespace ravenstore::device {
namespace {

CUdeviceptr Address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

// A stream of ours. It never waits for the legacy default stream nor is waited for by it.
Result<CUstream> NewStream(CudaGpu& gpu) {
  CUstream stream = nullptr;
  RAVEN_CUDA_CALL(gpu, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  return stream;
}

// Writes words once a stream's work so far is done, at the price of an event record on that stream:
// a side stream awaits the event and then writes. A write on the stream itself would hold up the
// work behind it by 2 microseconds of GPU time. One event does, because a wait keeps to the record
// that was the latest when the wait was enqueued.
// Owns: the side stream and the event. What it enqueued is still done after its end.
class CudaSignaller {
 public:
  CudaSignaller() = default;
  ~CudaSignaller() {
    if (gpu_ == nullptr) return;
    const CudaScope scope(gpu_->driver(), context_);
    if (event_ != nullptr) gpu_->driver().cuEventDestroy(event_);
    if (side_ != nullptr) gpu_->driver().cuStreamDestroy(side_);
  }
  CudaSignaller(const CudaSignaller&) = delete;
  CudaSignaller& operator=(const CudaSignaller&) = delete;

  // REQUIRES: `context`, the one to work in, is current.
  Status Open(CudaGpu* gpu, CUcontext context) {
    gpu_ = gpu;
    context_ = context;
    RAVEN_ASSIGN_OR_RETURN(side_, NewStream(*gpu));
    RAVEN_CUDA_CALL(*gpu, cuEventCreate, &event_, CU_EVENT_DISABLE_TIMING);
    return core::Ok();
  }

  Status SignalAfter(CUstream stream, const Word* word, uint64_t value) {
    RAVEN_ASSIGN_OR_RETURN(const CUdeviceptr target, gpu_->words().Find(word));
    RAVEN_CUDA_CALL(*gpu_, cuEventRecord, event_, stream);
    return WriteBehindEvent(target, value);
  }
  // The same behind every stream of the context.
  Status SignalAfterAll(const Word* word, uint64_t value) {
    RAVEN_ASSIGN_OR_RETURN(const CUdeviceptr target, gpu_->words().Find(word));
    RAVEN_RETURN_IF_ERROR(
        gpu_->Check(gpu_->driver().ctx_record_event(context_, event_), "cuCtxRecordEvent"));
    return WriteBehindEvent(target, value);
  }

 private:
  Status WriteBehindEvent(CUdeviceptr target, uint64_t value) {
    RAVEN_CUDA_CALL(*gpu_, cuStreamWaitEvent, side_, event_, CU_EVENT_WAIT_DEFAULT);
    // The default flag puts a system-wide fence before the write.
    RAVEN_CUDA_CALL(*gpu_, cuStreamWriteValue64, side_, target, value,
                    CU_STREAM_WRITE_VALUE_DEFAULT);
    return core::Ok();
  }

  CudaGpu* gpu_ = nullptr;
  CUcontext context_ = nullptr;
  CUstream side_ = nullptr;
  CUevent event_ = nullptr;
};

// Signals are events that the CPU looks at, in Poll, and words that it then writes. A stream that
// wrote the words itself would do so on the compute engine, where it takes turns of 2 ms with every
// other process that has a stream blocked in a wait-value (docs/decisions/0007): copies would be
// seen 2 ms late.
class CudaChannel : public Channel {
 public:
  CudaChannel(std::shared_ptr<CudaGpu> gpu, CUcontext context)
      : gpu_(std::move(gpu)), context_(context) {}

  ~CudaChannel() override {
    if (copies_ == nullptr) return;
    const CudaScope scope(gpu_->driver(), context_);
    gpu_->driver().cuStreamSynchronize(copies_);
    Poll();
    for (const Pending& pending : pending_) spare_.push_back(pending.event);
    for (const CUevent event : spare_) gpu_->driver().cuEventDestroy(event);
    gpu_->driver().cuStreamDestroy(copies_);
  }

  Status Open() {
    const CudaScope scope(gpu_->driver(), context_);
    const CudaCaptureExempt exempt(gpu_->driver());
    RAVEN_ASSIGN_OR_RETURN(copies_, NewStream(*gpu_));
    return core::Ok();
  }

  Status Copy(Target to, Source from, Bytes bytes) override {
    RAVEN_RETURN_IF_ERROR(CheckAddresses(to, from));
    const CudaScope scope(gpu_->driver(), context_);
    RAVEN_CUDA_CALL(*gpu_, cuMemcpyAsync, Address(to.address()), Address(from.address()),
                    bytes.count(), copies_);
    copied_since_record_ = true;
    return core::Ok();
  }
  Status Signal(Word* word, uint64_t value) override {
    RAVEN_RETURN_IF_ERROR(failure_);
    if (!copied_since_record_ && !pending_.empty()) {  // the latest event says it all
      pending_.back().writes.emplace_back(word, value);
      return core::Ok();
    }
    const CudaScope scope(gpu_->driver(), context_);
    CUevent event = nullptr;
    if (spare_.empty()) {
      RAVEN_CUDA_CALL(*gpu_, cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    } else {
      event = spare_.back();
      spare_.pop_back();
    }
    pending_.push_back({event, {{word, value}}});
    RAVEN_CUDA_CALL(*gpu_, cuEventRecord, event, copies_);
    copied_since_record_ = false;
    return core::Ok();
  }
  void Poll() override {
    const CudaScope scope(gpu_->driver(), context_);
    while (!pending_.empty() && failure_.ok()) {
      Pending& oldest = pending_.front();
      const CUresult result = gpu_->driver().cuEventQuery(oldest.event);
      if (result == CUDA_ERROR_NOT_READY) return;
      failure_ = gpu_->Check(result, "cuEventQuery");
      if (!failure_.ok()) return;
      for (const auto& [word, value] : oldest.writes) word->store(value, std::memory_order_release);
      spare_.push_back(oldest.event);
      pending_.pop_front();
    }
  }
  Status Health() override {
    RAVEN_RETURN_IF_ERROR(failure_);
    const CudaScope scope(gpu_->driver(), context_);
    const CUresult result = gpu_->driver().cuStreamQuery(copies_);
    if (result != CUDA_ERROR_NOT_READY) failure_ = gpu_->Check(result, "cuStreamQuery");
    return failure_;
  }

 private:
  struct Pending {
    CUevent event;
    std::vector<std::pair<Word*, uint64_t>> writes;
  };

  const std::shared_ptr<CudaGpu> gpu_;
  const CUcontext context_;
  CUstream copies_ = nullptr;
  bool copied_since_record_ = true;
  std::deque<Pending> pending_;  // oldest first
  std::vector<CUevent> spare_;
  Status failure_ = core::Ok();
};

// An event with a time. Owns: the event.
class CudaMark : public StreamMark {
 public:
  CudaMark(std::shared_ptr<CudaGpu> gpu, CUcontext context)
      : gpu_(std::move(gpu)), context_(context) {}
  ~CudaMark() override {
    if (event_ == nullptr) return;
    const CudaScope scope(gpu_->driver(), context_);
    gpu_->driver().cuEventDestroy(event_);
  }

  // REQUIRES: the context is current.
  Status Record(CUstream stream) {
    RAVEN_CUDA_CALL(*gpu_, cuEventCreate, &event_, CU_EVENT_DEFAULT);
    RAVEN_CUDA_CALL(*gpu_, cuEventRecord, event_, stream);
    return core::Ok();
  }
  Result<bool> Reached() const override {
    const CudaScope scope(gpu_->driver(), context_);
    const CUresult result = gpu_->driver().cuEventQuery(event_);
    if (result == CUDA_ERROR_NOT_READY) return false;
    RAVEN_RETURN_IF_ERROR(gpu_->Check(result, "cuEventQuery"));
    return true;
  }
  Result<core::Duration> Since(const StreamMark& earlier) const override {
    const CudaScope scope(gpu_->driver(), context_);
    float milliseconds = 0;
    RAVEN_RETURN_IF_ERROR(
        gpu_->Check(gpu_->driver().event_elapsed_time(
                        &milliseconds, dynamic_cast<const CudaMark&>(earlier).event_, event_),
                    "cuEventElapsedTime"));
    return std::chrono::round<core::Duration>(
        std::chrono::duration<double, std::milli>(milliseconds));
  }

 private:
  const std::shared_ptr<CudaGpu> gpu_;
  const CUcontext context_;
  CUevent event_ = nullptr;
};

class CudaStream : public Stream {
 public:
  CudaStream(std::shared_ptr<CudaGpu> gpu, CUcontext context, CUstream stream)
      : gpu_(std::move(gpu)), context_(context), stream_(stream) {}

  Status Open() {
    const CudaScope scope(gpu_->driver(), context_);
    const CudaCaptureExempt exempt(gpu_->driver());
    return signaller_.Open(gpu_.get(), context_);
  }

  Status SignalAfter(Word* word, uint64_t value) override {
    const CudaScope scope(gpu_->driver(), context_);
    return signaller_.SignalAfter(stream_, word, value);
  }
  Status Wait(Word* word, uint64_t value) override {
    const CudaScope scope(gpu_->driver(), context_);
    RAVEN_ASSIGN_OR_RETURN(const CUdeviceptr target, gpu_->words().Find(word));
    RAVEN_CUDA_CALL(*gpu_, cuStreamWaitValue64, stream_, target, value, CU_STREAM_WAIT_VALUE_GEQ);
    return core::Ok();
  }
  Status Copy(void* to, const void* from, Bytes bytes) override {
    const CudaScope scope(gpu_->driver(), context_);
    RAVEN_CUDA_CALL(*gpu_, cuMemcpyAsync, Address(to), Address(from), bytes.count(), stream_);
    return core::Ok();
  }
  Status Fill(void* to, uint8_t value, Bytes bytes) override {
    const CudaScope scope(gpu_->driver(), context_);
    RAVEN_CUDA_CALL(*gpu_, cuMemsetD8Async, Address(to), value, bytes.count(), stream_);
    return core::Ok();
  }
  Result<bool> Capturing() override {
    const CudaScope scope(gpu_->driver(), context_);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = gpu_->driver().cuStreamIsCapturing(stream_, &status);
    // The legacy stream cannot be captured, but work on it would break a capture that another
    // stream is in.
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
    RAVEN_RETURN_IF_ERROR(gpu_->Check(result, "cuStreamIsCapturing"));
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  }
  Status Synchronize() override {
    const CudaScope scope(gpu_->driver(), context_);
    RAVEN_CUDA_CALL(*gpu_, cuStreamSynchronize, stream_);
    return core::Ok();
  }
  Result<std::unique_ptr<StreamMark>> Mark() override {
    const CudaScope scope(gpu_->driver(), context_);
    auto mark = std::make_unique<CudaMark>(gpu_, context_);
    RAVEN_RETURN_IF_ERROR(mark->Record(stream_));
    return std::unique_ptr<StreamMark>(std::move(mark));
  }
  bool synchronous() const override { return false; }
  // The legacy stream, by either of its handles, is one for all threads, and waits for every
  // thread's own by itself.
  bool per_thread() const override { return stream_ == CU_STREAM_PER_THREAD; }

 private:
  const std::shared_ptr<CudaGpu> gpu_;
  const CUcontext context_;
  const CUstream stream_;
  CudaSignaller signaller_;
};

// Every stream of the GPU's primary context, which is the one that the CUDA runtime uses.
class CudaAllStreams : public Stream {
 public:
  CudaAllStreams(std::shared_ptr<CudaGpu> gpu, CUcontext context)
      : gpu_(std::move(gpu)), context_(context) {}

  Status Open() {
    if (gpu_->driver().ctx_record_event == nullptr) {
      return core::Error{core::ErrorCode::kUnsupported,
                         "this driver cannot wait for all streams of a process: that takes one of "
                         "CUDA 12.5 or later"};
    }
    const CudaScope scope(gpu_->driver(), context_);
    const CudaCaptureExempt exempt(gpu_->driver());
    return signaller_.Open(gpu_.get(), context_);
  }

  Status SignalAfter(Word* word, uint64_t value) override {
    const CudaScope scope(gpu_->driver(), context_);
    const CudaCaptureExempt exempt(gpu_->driver());
    return signaller_.SignalAfterAll(word, value);
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

 private:
  const std::shared_ptr<CudaGpu> gpu_;
  const CUcontext context_;
  CudaSignaller signaller_;
};

}  // namespace

Result<std::unique_ptr<Channel>> OpenCudaChannel(std::shared_ptr<CudaGpu> gpu) {
  RAVEN_ASSIGN_OR_RETURN(const CUcontext context, gpu->Primary());
  auto channel = std::make_unique<CudaChannel>(std::move(gpu), context);
  RAVEN_RETURN_IF_ERROR(channel->Open());
  return std::unique_ptr<Channel>(std::move(channel));
}

Result<std::unique_ptr<Stream>> WrapCudaStream(std::shared_ptr<CudaGpu> gpu, StreamHandle handle) {
  const auto stream = static_cast<CUstream>(handle);
  const bool is_default =
      stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  RAVEN_ASSIGN_OR_RETURN(CUcontext context, gpu->Primary());
  if (handle == AllStreams()) {
    auto all = std::make_unique<CudaAllStreams>(std::move(gpu), context);
    RAVEN_RETURN_IF_ERROR(all->Open());
    return std::unique_ptr<Stream>(std::move(all));
  }
  // A stream of a context that the program made itself is used in that one.
  if (!is_default) RAVEN_CUDA_CALL(*gpu, cuStreamGetCtx, stream, &context);
  auto wrapped = std::make_unique<CudaStream>(std::move(gpu), context, stream);
  RAVEN_RETURN_IF_ERROR(wrapped->Open());
  return std::unique_ptr<Stream>(std::move(wrapped));
}

}  // namespace ravenstore::device
