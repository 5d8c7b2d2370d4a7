// The CUDA driver API as a table of functions found at run time, so that every binary starts on a
// machine without a driver.
//
// Only device/cuda_* includes this. The members carry the names of <cuda.h>, whose macros choose
// the version of each entry point (cuMemGetInfo is cuMemGetInfo_v2 and so on): what is called here
// is by construction what the header describes.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>

#include "core/result.h"

namespace ravenstore::device {

// clang-format off
#define RAVEN_CUDA_CALLS(X)                                                                  \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGet)       \
  X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDeviceGetUuid)          \
  X(cuDeviceTotalMem) X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain)                   \
  X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxGetState) X(cuCtxGetCurrent)              \
  X(cuCtxSetCurrent)                                                                         \
  X(cuThreadExchangeStreamCaptureMode) X(cuMemGetInfo) X(cuMemAddressReserve)                \
  X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap)               \
  X(cuMemSetAccess) X(cuMemGetAllocationGranularity) X(cuMemExportToShareableHandle)         \
  X(cuMemImportFromShareableHandle) X(cuMemHostRegister) X(cuMemHostUnregister)              \
  X(cuMemHostGetDevicePointer) X(cuMemcpyAsync) X(cuMemsetD8Async) X(cuStreamCreate)         \
  X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) X(cuStreamGetCtx)               \
  X(cuStreamIsCapturing) X(cuStreamWaitEvent) X(cuStreamWriteValue64) X(cuStreamWaitValue64) \
  X(cuEventCreate) X(cuEventRecord) X(cuEventQuery) X(cuEventDestroy)
// clang-format on

// Threads: any; nothing changes after Load.
class CudaDriver {
 public:
  // Opens `library` and finds every function. It is never closed: the driver has threads.
  // Errors: kUnavailable when there is no such library or it lacks a function.
  static core::Result<std::shared_ptr<const CudaDriver>> Load(const std::string& library);

  // $RAVENSTORE_LIBCUDA, else libcuda.so.1.
  static std::string DefaultLibrary();

#define RAVEN_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  RAVEN_CUDA_CALLS(RAVEN_CUDA_MEMBER)
#undef RAVEN_CUDA_MEMBER

  // The first version of cuDeviceGetUuid, which knows whole GPUs only: a MIG instance is a device
  // to which the two give different answers. Null when the driver no longer has it.
  decltype(&::cuDeviceGetUuid) device_get_gpu_uuid = nullptr;
  // Records an event behind all that a context does. Null in drivers before CUDA 12.5; its type is
  // written out for headers before that.
  CUresult (*ctx_record_event)(CUcontext, CUevent) = nullptr;
  // Either version: they differ in a flag of events that nothing here sets.
  CUresult (*event_elapsed_time)(float*, CUevent, CUevent) = nullptr;

  // What the failure of `call` means, in the driver's words. `subject` ("device 0") begins the
  // message. kOutOfMemory, kUnsupported, kUnavailable (no driver, no GPU) or kDevice.
  core::Error Failure(CUresult result, const char* call, const std::string& subject) const;
};

}  // namespace ravenstore::device
