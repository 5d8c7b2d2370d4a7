#include "device/device.h"

namespace ravenstore::device {

std::shared_ptr<Device> FindByUuid(const Devices& devices, const std::string& uuid) {
  for (const auto& device : devices) {
    if (device->info().uuid == uuid) return device;
  }
  return nullptr;
}

}  // namespace ravenstore::device
