// The CUDA backend of a build that found no toolkit.
#include "device/device.h"

namespace ravenstore::device {

Result<Devices> OpenCudaDevices() {
  return core::Error{core::ErrorCode::kUnavailable, "built without the CUDA toolkit"};
}

}  // namespace ravenstore::device
