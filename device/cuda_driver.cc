#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <stdlib.h>

namespace ravenstore::device {
namespace {

#define RAVEN_STRINGIFY_INNER(x) #x
// The name as <cuda.h>'s macros rewrite it: "cuMemGetInfo_v2".
#define RAVEN_STRINGIFY(x) RAVEN_STRINGIFY_INNER(x)

core::Error Unavailable(const std::string& library, const std::string& what) {
  return {core::ErrorCode::kUnavailable, "CUDA driver " + library + ": " + what};
}

core::ErrorCode CodeOf(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY: return core::ErrorCode::kOutOfMemory;
    case CUDA_ERROR_NOT_SUPPORTED: return core::ErrorCode::kUnsupported;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_STUB_LIBRARY: return core::ErrorCode::kUnavailable;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION: return core::ErrorCode::kCapturing;
    default: return core::ErrorCode::kDevice;
  }
}

}  // namespace

core::Result<std::shared_ptr<const CudaDriver>> CudaDriver::Load(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Unavailable(library, dlerror());
  auto driver = std::make_shared<CudaDriver>();
  const char* missing = nullptr;
#define RAVEN_CUDA_FIND(name)                                                                    \
  driver->name = reinterpret_cast<decltype(driver->name)>(dlsym(handle, RAVEN_STRINGIFY(name))); \
  if (driver->name == nullptr) missing = RAVEN_STRINGIFY(name);
  RAVEN_CUDA_CALLS(RAVEN_CUDA_FIND)
#undef RAVEN_CUDA_FIND
  if (missing != nullptr) {
    return Unavailable(library, std::string("has no ") + missing + "; it is too old, or no driver");
  }
  driver->device_get_gpu_uuid =
      reinterpret_cast<decltype(driver->device_get_gpu_uuid)>(dlsym(handle, "cuDeviceGetUuid"));
  driver->ctx_record_event =
      reinterpret_cast<decltype(driver->ctx_record_event)>(dlsym(handle, "cuCtxRecordEvent"));
  void* elapsed = dlsym(handle, "cuEventElapsedTime_v2");
  if (elapsed == nullptr) elapsed = dlsym(handle, "cuEventElapsedTime");
  if (elapsed == nullptr) return Unavailable(library, "has no cuEventElapsedTime; it is no driver");
  driver->event_elapsed_time = reinterpret_cast<decltype(driver->event_elapsed_time)>(elapsed);
  return std::shared_ptr<const CudaDriver>(std::move(driver));
}

std::string CudaDriver::DefaultLibrary() {
  const char* named = getenv("RAVENSTORE_LIBCUDA");
  return named != nullptr && *named != '\0' ? named : "libcuda.so.1";
}

core::Error CudaDriver::Failure(CUresult result, const char* call,
                                const std::string& subject) const {
  const char* name = nullptr;
  const char* words = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
  if (cuGetErrorString(result, &words) != CUDA_SUCCESS || words == nullptr) words = "no words";
  return {CodeOf(result), subject + ": " + call + ": " + name + " (" +
                              std::to_string(static_cast<int>(result)) + "): " + words};
}

}  // namespace ravenstore::device
