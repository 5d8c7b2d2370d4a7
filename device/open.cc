#include "device/open.h"

namespace ravenstore::device {

Result<Devices> OpenDevices(const std::string& backend, const HostOptions& options) {
  if (backend == "host") return OpenHostDevices(options);
  if (backend == "cuda") return OpenCudaDevices();
  if (backend != "auto") {
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "backend \"" + backend + "\": must be \"host\", \"cuda\" or \"auto\""};
  }
  Result<Devices> gpus = OpenCudaDevices();
  if (!gpus.ok() && gpus.error().code == core::ErrorCode::kUnavailable) {
    return OpenHostDevices(options);
  }
  return gpus;
}

}  // namespace ravenstore::device
