// How much a unit is worth whose next use is unknown: by how often and how recently it was used.
//
// A use of one of n tensors in the unit is 1/n of a use. A unit is worth its uses plus an age. The
// age is the largest worth of a unit that has left, when the unit is used. A unit that is used
// often thus stays longer, and one that was used often in the past leaves after newer ones. The
// unit that is worth least leaves first; of those that are worth the same, the least recently used.
//
// Source: GreedyDual-Size with Frequency (Cherkasova, "Improving WWW Proxies Performance with
// Greedy-Dual-Size-Frequency Caching Policy", 1998). Cost and size are left out: a byte of each
// unit costs the same copy.
//
// Owns: the age. Units: uses. Threads: one at a time. Cost: O(1).
#pragma once

#include <algorithm>

#include "core/plan/unit_state.h"

namespace ravenstore::core::plan {

class UseWorth {
 public:
  // A tensor in the unit is used.
  void Use(UnitState* unit) const {
    unit->uses += 1.0 / std::max(unit->live, 1U);
    unit->worth = age_ + unit->uses;
  }
  // The unit leaves because it is worth least.
  void Leaves(const UnitState& unit) { age_ = std::max(age_, unit.worth); }

 private:
  double age_ = 0;
};

}  // namespace ravenstore::core::plan
