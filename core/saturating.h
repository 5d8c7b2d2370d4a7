// Sums of figures that other processes wrote.
#pragma once

#include <cstdint>
#include <limits>

namespace ravenstore::core {

// a + b, or the largest number if that is more. A wrapped sum would hide the larger figure.
constexpr uint64_t SaturatingSum(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<uint64_t>::max() : sum;
}

// *sum = SaturatingSum(*sum, more).
constexpr void AddSaturating(uint64_t more, uint64_t* sum) {
  *sum = SaturatingSum(*sum, more);
}

}  // namespace ravenstore::core
