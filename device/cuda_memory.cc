#include "device/cuda_memory.h"

#include <stdint.h>

#include <string>
#include <utility>

namespace ravenstore::device {
namespace {

core::Error CreateFailed(const CudaGpu& gpu, CUresult result, const CUmemAllocationProp& at,
                         Bytes asked) {
  core::Error error = gpu.Failure(result, "cuMemCreate");
  error.message += "; " + std::to_string(asked.count()) + " bytes asked";
  size_t free = 0;
  size_t total = 0;
  const bool on_device = at.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (on_device && gpu.driver().cuMemGetInfo(&free, &total) == CUDA_SUCCESS) {
    error.message += ", " + std::to_string(free) + " free";
  }
  return error;
}

}  // namespace

Result<std::shared_ptr<const CudaMemory>> CudaMemory::Create(std::shared_ptr<CudaGpu> gpu,
                                                             const CUmemAllocationProp& at,
                                                             Bytes bytes, Bytes granularity) {
  RAVEN_RETURN_IF_ERROR(CheckSize(bytes, granularity));
  RAVEN_ASSIGN_OR_RETURN(const CUcontext context, gpu->Primary());
  const CudaScope scope(gpu->driver(), context);
  const CudaCaptureExempt exempt(gpu->driver());
  CUmemGenericAllocationHandle handle = 0;
  const CUresult made = gpu->driver().cuMemCreate(&handle, bytes.count(), &at, 0);
  if (made != CUDA_SUCCESS) return CreateFailed(*gpu, made, at, bytes);
  return std::make_shared<const CudaMemory>(std::move(gpu), handle, bytes, granularity);
}

Result<std::shared_ptr<const CudaMemory>> CudaMemory::Import(std::shared_ptr<CudaGpu> gpu,
                                                             ipc::UniqueFd descriptor,
                                                             Bytes bytes) {
  RAVEN_ASSIGN_OR_RETURN(const CUcontext context, gpu->Primary());
  const CudaScope scope(gpu->driver(), context);
  const CudaCaptureExempt exempt(gpu->driver());
  CUmemGenericAllocationHandle handle = 0;
  void* const file = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor.get()));
  RAVEN_CUDA_CALL(*gpu, cuMemImportFromShareableHandle, &handle, file, kHandleType);
  return std::make_shared<const CudaMemory>(std::move(gpu), handle, bytes, Bytes{});
}

Result<ipc::UniqueFd> CudaMemory::Export() const {
  if (granularity_ == Bytes{}) return ImportedMemory();
  gpu_->KeepExporting(granularity_);
  return ExportMemory(*gpu_, handle_);
}

}  // namespace ravenstore::device
