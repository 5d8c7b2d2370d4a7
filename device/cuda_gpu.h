// What the files of the CUDA backend share about one GPU: its driver table, its primary context,
// the shared words known to the driver, and how a failed call becomes an Error.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "device/cuda_driver.h"
#include "device/device.h"
#include "ipc/unique_fd.h"

namespace ravenstore::device {

class CudaGpu;

// How memory of ours is passed to other processes.
constexpr CUmemAllocationHandleType kHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// Physical memory there, to be mapped and exported.
CUmemAllocationProp MemoryAt(CUmemLocationType type, int id);

// A descriptor of it, closed on exec.
core::Result<ipc::UniqueFd> ExportMemory(CudaGpu& gpu, CUmemGenericAllocationHandle memory);

// Makes a context current on the calling thread, and the previous one again at its end. Costs one
// look at the current context where it is the right one already.
class CudaScope {
 public:
  CudaScope(const CudaDriver& driver, CUcontext context) : driver_(driver) {
    driver_.cuCtxGetCurrent(&previous_);
    changed_ = previous_ != context;
    if (changed_) [[unlikely]]
      driver_.cuCtxSetCurrent(context);
  }
  ~CudaScope() {
    if (changed_) [[unlikely]]
      driver_.cuCtxSetCurrent(previous_);
  }
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

 private:
  const CudaDriver& driver_;
  CUcontext previous_ = nullptr;
  bool changed_ = false;
};

// Lets the calling thread make calls that a graph capture elsewhere in the process (in PyTorch's
// default mode) would otherwise be broken by: ours touch nothing that is captured.
class CudaCaptureExempt {
 public:
  explicit CudaCaptureExempt(const CudaDriver& driver) : driver_(driver) {
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~CudaCaptureExempt() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  CudaCaptureExempt(const CudaCaptureExempt&) = delete;
  CudaCaptureExempt& operator=(const CudaCaptureExempt&) = delete;

 private:
  const CudaDriver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Shared pages that the driver knows, and where its devices see them. One table serves all devices
// of a process, because a page can be registered once only.
// Threads: any.
class CudaWords {
 public:
  // Registers [begin, begin + bytes) through `gpu`, or counts one more user of it.
  core::Status Add(CudaGpu& gpu, void* begin, core::Bytes bytes);
  // Ends one use, and with the last the registration; that may wait for streams held in a Wait, and
  // an Add of a new page meanwhile with it.
  void Remove(CudaGpu& gpu, void* begin);
  // The address of `word` on the devices; kInvalidArgument if no registered page contains it.
  core::Result<CUdeviceptr> Find(const Word* word) const;

 private:
  struct Range {
    uint64_t bytes;
    CUdeviceptr on_device;
    uint32_t users;
  };
  // Counts one more user of a range that is known.
  bool Share(uintptr_t begin, core::Bytes bytes);

  // Held around what the driver and ranges_ must agree on. Taken before mutex_, which those that
  // only look need not wait for while the driver does.
  std::mutex registering_;
  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, Range> ranges_;  // by begin; guarded by mutex_
};

// Owns: a reference on the GPU's primary context from the first use on. A context costs hundreds of
// megabytes of the GPU, so an unused GPU gets none.
// Threads: any.
class CudaGpu {
 public:
  CudaGpu(std::shared_ptr<const CudaDriver> driver, CUdevice device, int ordinal,
          std::shared_ptr<CudaWords> words);
  ~CudaGpu();
  CudaGpu(const CudaGpu&) = delete;
  CudaGpu& operator=(const CudaGpu&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  CUdevice device() const { return device_; }
  CudaWords& words() const { return *words_; }

  core::Result<CUcontext> Primary();
  // What a context takes of the GPU is measured, if it is made from now on: `free_bytes` says what
  // is free without one.
  void MeasureContext(std::function<core::Result<core::Bytes>()> free_bytes);
  // That; 0: there is none, or it was made before.
  core::Bytes context_bytes() const { return context_bytes_.load(std::memory_order_relaxed); }
  // Before memory of this GPU is exported. The driver takes 0.7 ms to export the first of a GPU, in
  // whatever process, and 0.6 to close the last descriptor of any; while there is another it takes
  // 40 and 10 us (driver 580). So one descriptor, of `unit` bytes, stays open from the first call
  // on. Where there is no room for it exports are slow, and the next call tries again.
  void KeepExporting(core::Bytes unit);
  // 0 for an attribute that the driver does not know.
  int Attribute(CUdevice_attribute attribute) const;

  core::Status Check(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) [[likely]]
      return core::Ok();
    return Failure(result, call);
  }
  core::Error Failure(CUresult result, const char* call) const {
    return driver_->Failure(result, call, name_);
  }

 private:
  const std::shared_ptr<const CudaDriver> driver_;
  const CUdevice device_;
  const std::string name_;  // "device 0"
  const std::shared_ptr<CudaWords> words_;
  std::mutex mutex_;
  std::atomic<CUcontext> primary_{nullptr};  // set under mutex_
  std::atomic<core::Bytes> context_bytes_{};
  std::function<core::Result<core::Bytes>()> free_bytes_;  // guarded by mutex_
  ipc::UniqueFd exported_;                                 // guarded by mutex_
};

}  // namespace ravenstore::device

// Calls a function of `gpu`'s driver and returns its failure from the enclosing function.
#define RAVEN_CUDA_CALL(gpu, name, ...) \
  RAVEN_RETURN_IF_ERROR((gpu).Check((gpu).driver().name(__VA_ARGS__), #name))
