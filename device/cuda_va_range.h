// The CUDA backend's arenas.
#pragma once

#include <memory>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "device/cuda_gpu.h"
#include "device/device.h"

namespace ravenstore::device {

// The unit of every chunk, of device and of host memory.
core::Result<core::Bytes> CudaGranularity(CudaGpu& gpu);

// An arena for memory of `gpu`, usable by it and by those of `all` that can reach it.
core::Result<std::unique_ptr<VaRange>> ReserveCudaVaRange(std::shared_ptr<CudaGpu> gpu,
                                                          const std::vector<CUdevice>& all,
                                                          core::Bytes size,
                                                          core::Bytes granularity);

// An arena for pinned host memory on `numa_node` (-1: the node of `gpu`), usable by `all` and by
// the CPU. Made by the driver where it can (faster to pin), else of registered memfds.
core::Result<std::unique_ptr<VaRange>> ReserveCudaHostVaRange(std::shared_ptr<CudaGpu> gpu,
                                                              const std::vector<CUdevice>& all,
                                                              core::Bytes size,
                                                              core::Bytes granularity,
                                                              int numa_node);

// The backing of a registered range. kShared: memfds, which can be exported. kOwn: anonymous huge
// pages, which all cores clear and which are registered in a tenth of the time.
enum class RegisteredMemory { kShared, kOwn };

// The second of the two kinds, for tests and for drivers without the first.
core::Result<std::unique_ptr<VaRange>> ReserveRegisteredVaRange(
    std::shared_ptr<CudaGpu> gpu, core::Bytes size, core::Bytes granularity, int numa_node,
    RegisteredMemory memory = RegisteredMemory::kShared);

// An arena for pinned host memory that is never exported: registered memory of the process's own
// where the system has huge pages, else as ReserveCudaHostVaRange.
core::Result<std::unique_ptr<VaRange>> ReserveCudaPoolVaRange(std::shared_ptr<CudaGpu> gpu,
                                                              const std::vector<CUdevice>& all,
                                                              core::Bytes size,
                                                              core::Bytes granularity,
                                                              int numa_node);

}  // namespace ravenstore::device
