// Physical memory of a GPU, or of the host, that the driver's virtual memory management makes.
#pragma once

#include <memory>
#include <utility>

#include "core/result.h"
#include "core/types.h"
#include "device/cuda_gpu.h"
#include "device/device.h"
#include "ipc/unique_fd.h"

namespace ravenstore::device {

// Owns: a reference on the memory. Mapped memory does not need it, but Export and further mappings
// do.
class CudaMemory : public PhysicalMemory {
 public:
  // As `at` says. `bytes` is a multiple of `granularity`.
  // Errors: as of Device::CreateMemory.
  static core::Result<std::shared_ptr<const CudaMemory>> Create(std::shared_ptr<CudaGpu> gpu,
                                                                const CUmemAllocationProp& at,
                                                                core::Bytes bytes,
                                                                core::Bytes granularity);
  // That of another process. A wrong size shows when it is mapped.
  static core::Result<std::shared_ptr<const CudaMemory>> Import(std::shared_ptr<CudaGpu> gpu,
                                                                ipc::UniqueFd descriptor,
                                                                core::Bytes bytes);

  // `granularity` is zero of imported memory.
  CudaMemory(std::shared_ptr<CudaGpu> gpu, CUmemGenericAllocationHandle handle, core::Bytes size,
             core::Bytes granularity)
      : gpu_(std::move(gpu)), handle_(handle), size_(size), granularity_(granularity) {}
  ~CudaMemory() override { gpu_->driver().cuMemRelease(handle_); }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  core::Bytes size() const override { return size_; }
  core::Result<ipc::UniqueFd> Export() const override;
  const CudaGpu* gpu() const { return gpu_.get(); }
  CUmemGenericAllocationHandle handle() const { return handle_; }

 private:
  const std::shared_ptr<CudaGpu> gpu_;
  const CUmemGenericAllocationHandle handle_;
  const core::Bytes size_;
  const core::Bytes granularity_;
};

}  // namespace ravenstore::device
