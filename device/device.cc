#include "device/device.h"

#include <string>

namespace ravenstore::device {

Status PhysicalMemory::CheckSize(Bytes bytes, Bytes granularity) {
  if (bytes > Bytes{} && bytes.RoundUp(granularity) == bytes) return core::Ok();
  return core::Error{core::ErrorCode::kInvalidArgument,
                     "memory of " + std::to_string(bytes.count()) + " bytes: no multiple of " +
                         std::to_string(granularity.count())};
}

std::shared_ptr<Device> FindByUuid(const Devices& devices, const std::string& uuid) {
  for (const auto& device : devices) {
    if (device->info().uuid == uuid) return device;
  }
  return nullptr;
}

}  // namespace ravenstore::device
