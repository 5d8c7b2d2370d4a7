#include "core/books/unit_totals.h"

#include <utility>

namespace ravenstore::core {

void UnitTotals::SetOccupied(plan::Unit unit, uint32_t slots_per_page, bool occupied) {
  if (std::exchange(units_[unit].occupied, occupied) == occupied) return;
  if (occupied) {
    occupied_.Add(slots_per_page);
  } else {
    occupied_.Remove(slots_per_page);
  }
}

void UnitTotals::SetLeaving(plan::Unit unit, bool leaving) {
  if (std::exchange(units_[unit].leaving, leaving) == leaving) return;
  leaving_ = leaving ? leaving_ + 1 : leaving_ - 1;
}

void UnitTotals::Set(plan::Unit unit, Sum sum, Bytes memory, bool counts) {
  const auto at = static_cast<size_t>(sum);
  if (std::exchange(units_[unit].in[at], counts) == counts) return;
  sums_[at] = counts ? sums_[at] + memory : sums_[at] - memory;
}

}  // namespace ravenstore::core
