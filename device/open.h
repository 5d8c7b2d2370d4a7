// Opens the devices of the backend that a configuration names.
#pragma once

#include <string>

#include "device/device.h"

namespace ravenstore::device {

// `backend` is "host", "cuda", or "auto": cuda where a driver shows a GPU, else host. `options` is
// for the host backend.
// Errors: kInvalidArgument for another name, and those of OpenCudaDevices; "auto" turns only its
// kUnavailable into the host backend, so that a broken driver is seen and not hidden.
Result<Devices> OpenDevices(const std::string& backend, const HostOptions& options);

}  // namespace ravenstore::device
