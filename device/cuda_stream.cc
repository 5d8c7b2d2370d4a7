#include "device/cuda_stream.h"

#include <utility>

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
    RAVEN_CUDA_CALL(*gpu_, cuStreamWaitEvent, side_, event_, CU_EVENT_WAIT_DEFAULT);
    // The default flag puts a system-wide fence before the write.
    RAVEN_CUDA_CALL(*gpu_, cuStreamWriteValue64, side_, target, value,
                    CU_STREAM_WRITE_VALUE_DEFAULT);
    return core::Ok();
  }

  CUstream side() const { return side_; }

 private:
  CudaGpu* gpu_ = nullptr;
  CUcontext context_ = nullptr;
  CUstream side_ = nullptr;
  CUevent event_ = nullptr;
};

class CudaChannel : public Channel {
 public:
  CudaChannel(std::shared_ptr<CudaGpu> gpu, CUcontext context)
      : gpu_(std::move(gpu)), context_(context) {}

  ~CudaChannel() override {
    if (copies_ == nullptr) return;
    const CudaScope scope(gpu_->driver(), context_);
    gpu_->driver().cuStreamSynchronize(copies_);
    if (signaller_.side() != nullptr) gpu_->driver().cuStreamSynchronize(signaller_.side());
    gpu_->driver().cuStreamDestroy(copies_);
  }

  Status Open() {
    const CudaScope scope(gpu_->driver(), context_);
    const CudaCaptureExempt exempt(gpu_->driver());
    RAVEN_ASSIGN_OR_RETURN(copies_, NewStream(*gpu_));
    return signaller_.Open(gpu_.get(), context_);
  }

  Status Copy(void* to, const void* from, Bytes bytes) override {
    const CudaScope scope(gpu_->driver(), context_);
    RAVEN_CUDA_CALL(*gpu_, cuMemcpyAsync, Address(to), Address(from), bytes.count(), copies_);
    return core::Ok();
  }
  Status Signal(Word* word, uint64_t value) override {
    const CudaScope scope(gpu_->driver(), context_);
    return signaller_.SignalAfter(copies_, word, value);
  }
  Status Health() override {
    const CudaScope scope(gpu_->driver(), context_);
    RAVEN_RETURN_IF_ERROR(Query(copies_));
    return Query(signaller_.side());
  }

 private:
  Status Query(CUstream stream) {
    const CUresult result = gpu_->driver().cuStreamQuery(stream);
    if (result == CUDA_ERROR_NOT_READY) return core::Ok();
    return gpu_->Check(result, "cuStreamQuery");
  }

  const std::shared_ptr<CudaGpu> gpu_;
  const CUcontext context_;
  CUstream copies_ = nullptr;
  CudaSignaller signaller_;
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
  bool synchronous() const override { return false; }

 private:
  const std::shared_ptr<CudaGpu> gpu_;
  const CUcontext context_;
  const CUstream stream_;
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
  // A stream of a context that the program made itself is used in that one.
  if (!is_default) RAVEN_CUDA_CALL(*gpu, cuStreamGetCtx, stream, &context);
  auto wrapped = std::make_unique<CudaStream>(std::move(gpu), context, stream);
  RAVEN_RETURN_IF_ERROR(wrapped->Open());
  return std::unique_ptr<Stream>(std::move(wrapped));
}

}  // namespace ravenstore::device
