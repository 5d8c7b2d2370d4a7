// The CUDA backend's channels and streams.
#pragma once

#include <memory>

#include "core/result.h"
#include "device/cuda_gpu.h"
#include "device/device.h"

namespace ravenstore::device {

core::Result<std::unique_ptr<Channel>> OpenCudaChannel(std::shared_ptr<CudaGpu> gpu);

// The Stream over `handle`, a CUstream. Null, like CU_STREAM_LEGACY and CU_STREAM_PER_THREAD, is a
// default stream of the GPU's primary context, the one that the CUDA runtime uses.
core::Result<std::unique_ptr<Stream>> WrapCudaStream(std::shared_ptr<CudaGpu> gpu,
                                                     StreamHandle handle);

}  // namespace ravenstore::device
