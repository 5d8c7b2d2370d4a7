// What copies between a device and the host take.
#pragma once

#include <chrono>

#include "core/types.h"

namespace ravenstore::core {

struct LinkModel {
  Duration latency{std::chrono::microseconds(12)};
  double up_bytes_per_second = 50e9;    // host to device
  double down_bytes_per_second = 50e9;  // device to host
};

}  // namespace ravenstore::core
