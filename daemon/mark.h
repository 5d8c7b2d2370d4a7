// What a tensor's bytes were as they left their device: to be compared with what is there at the
// end of that move, and of each later one of the same bytes. Only for memory that the CPU reads,
// as that of the host backend's devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "core/types.h"

namespace ravenstore::daemon {

struct Mark {
  core::TensorId tensor = core::kNoTensor;
  uint32_t version = 0;
  core::Bytes bytes;
  uint64_t sum = 0;

  bool IsOf(const std::byte* at) const { return SumOf(at, bytes) == sum; }
  // A number that another order, or one changed bit, all but surely changes.
  static uint64_t SumOf(const std::byte* at, core::Bytes bytes) {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(at), bytes.count()});
  }
};

}  // namespace ravenstore::daemon
