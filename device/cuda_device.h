// Opens the CUDA backend over a driver of the caller's choice; OpenCudaDevices of device.h takes
// the one of this machine.
#pragma once

#include <memory>

#include "device/cuda_driver.h"
#include "device/device.h"

namespace ravenstore::device {

// Initialises `driver`. No GPU gets a context before it is used.
// Errors: kUnavailable when it shows no GPU.
Result<Devices> OpenCudaDevices(std::shared_ptr<const CudaDriver> driver);

}  // namespace ravenstore::device
