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

}  // namespace ravenstore::core
