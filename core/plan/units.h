// The units that move as a whole: a page of the range of addresses, or a small tensor's slot.
//
// Units have dense numbers, so that tables are indexed by them: pages are even, slots odd.
//
// Owns: plain data. Units: bytes.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace ravenstore::core::plan {

using Unit = uint32_t;

// The consecutive units of one tensor.
struct UnitSpan {
  Unit first = 0;
  uint32_t count = 0;
  uint32_t slots_per_page = 1;  // of each unit; 1: it is a page, or a slot of a whole page

  // The number of the i-th unit; of consecutive ones it differs by 2.
  Unit operator[](uint32_t i) const { return first + 2 * i; }
  // The i-th unit alone.
  UnitSpan Part(uint32_t i) const { return {(*this)[i], 1, slots_per_page}; }
  // One more than the largest unit.
  Unit end() const { return count == 0 ? 0 : (*this)[count - 1] + 1; }
  bool Contains(Unit unit) const { return unit >= first && unit < end() && unit % 2 == first % 2; }
  bool is_slot() const { return first % 2 == 1; }
};

constexpr bool IsSlot(Unit unit) {
  return unit % 2 == 1;
}

}  // namespace ravenstore::core::plan
