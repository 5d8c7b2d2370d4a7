#include "core/plan/deadlines.h"

#include <algorithm>

namespace ravenstore::core::plan {

void Deadlines::Restart(const ResidencyPlan& plan) {
  std::vector<int64_t> times;
  times.reserve(static_cast<size_t>(plan.horizon()));
  for (Position i = 0; i < plan.horizon(); ++i) times.push_back(plan.TimeOf(i).count());
  for (RangeMinimum& spare : spare_) spare.Assign(times);
  deadlines_.clear();
}

void Deadlines::Set(Unit unit, Position need, PoolNumber pool, Duration copy) {
  Clear(unit);
  RangeMinimum& spare = spare_[pool];
  if (need < 0 || static_cast<size_t>(need) >= spare.size()) return;
  if (unit >= deadlines_.size()) deadlines_.resize(unit + 1);
  deadlines_[unit] = {need, pool, copy};
  spare.Add(static_cast<size_t>(need), spare.size() - 1, -copy.count());
}

void Deadlines::Clear(Unit unit) {
  if (unit >= deadlines_.size() || deadlines_[unit].need == kNoPosition) return;
  const Deadline deadline = deadlines_[unit];
  deadlines_[unit] = {};
  RangeMinimum& spare = spare_[deadline.pool];
  spare.Add(static_cast<size_t>(deadline.need), spare.size() - 1, deadline.copy.count());
}

bool Deadlines::IsLate(const ResidencyPlan& plan) const {
  if (plan.position() >= plan.horizon()) return false;
  const int64_t now = plan.TimeOf(plan.position()).count();
  return std::any_of(spare_.begin(), spare_.end(), [&](const RangeMinimum& spare) {
    if (spare.size() == 0) return false;
    return spare.Least(static_cast<size_t>(plan.position()), spare.size() - 1) < now;
  });
}

}  // namespace ravenstore::core::plan
