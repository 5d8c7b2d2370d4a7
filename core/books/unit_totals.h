// Sums over a client's units that decisions need: those that are occupied, in use, ready to leave
// without a copy, awaited by calls, and on their way out.
//
// A unit's part is as the last Set says. Owns: the sums. Units: bytes of memory, pages.
// Threads: one at a time. Cost: O(log classes) a change.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/held_pages.h"
#include "core/plan/units.h"
#include "core/types.h"

namespace ravenstore::core {

class UnitTotals {
 public:
  enum class Sum : uint8_t { kInUse, kReady, kAwaited, kCount };

  void Resize(size_t units) { units_.resize(units); }
  // Tensors live there, or calls hold it.
  void SetOccupied(plan::Unit unit, uint32_t slots_per_page, bool occupied);
  // A copy out of the unit is under way, after which it leaves.
  void SetLeaving(plan::Unit unit, bool leaving);
  // The unit's memory is in the sum.
  void Set(plan::Unit unit, Sum sum, Bytes memory, bool counts);

  Bytes operator[](Sum sum) const { return sums_[static_cast<size_t>(sum)]; }
  bool IsOccupied(plan::Unit unit) const { return unit < units_.size() && units_[unit].occupied; }
  uint32_t leaving() const { return leaving_; }
  const plan::HeldPages& occupied() const { return occupied_; }

 private:
  static constexpr auto kSums = static_cast<size_t>(Sum::kCount);
  struct Part {
    bool occupied = false;
    bool leaving = false;
    bool in[kSums] = {};
  };

  std::vector<Part> units_;
  plan::HeldPages occupied_;
  uint32_t leaving_ = 0;  // units
  Bytes sums_[kSums];
};

}  // namespace ravenstore::core
