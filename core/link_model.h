// What copies between a device and another pool take.
#pragma once

#include <chrono>

#include "core/types.h"

namespace ravenstore::core {

struct LinkModel {
  Duration latency{std::chrono::microseconds(12)};
  double up_bytes_per_second = 50e9;    // to the device
  double down_bytes_per_second = 50e9;  // from it
};

// What copying `size` out of the device and back takes.
inline Duration BothCopies(const LinkModel& link, Bytes size) {
  const auto bytes = static_cast<double>(size.count());
  return 2 * link.latency +
         FromSeconds(bytes / link.up_bytes_per_second + bytes / link.down_bytes_per_second);
}

}  // namespace ravenstore::core
