#include "core/plan/deadlines.h"

namespace ravenstore::core::plan {

void Deadlines::Restart(const ResidencyPlan& plan) {
  std::vector<int64_t> times;
  times.reserve(static_cast<size_t>(plan.horizon()));
  for (Position i = 0; i < plan.horizon(); ++i) times.push_back(plan.TimeOf(i).count());
  spare_.Assign(times);
  deadlines_.clear();
}

void Deadlines::Set(Unit unit, Position need, Duration copy) {
  Clear(unit);
  if (need < 0 || static_cast<size_t>(need) >= spare_.size()) return;
  if (unit >= deadlines_.size()) deadlines_.resize(unit + 1);
  deadlines_[unit] = {need, copy};
  spare_.Add(static_cast<size_t>(need), spare_.size() - 1, -copy.count());
}

void Deadlines::Clear(Unit unit) {
  if (unit >= deadlines_.size() || deadlines_[unit].need == kNoPosition) return;
  const Deadline deadline = deadlines_[unit];
  deadlines_[unit] = {};
  spare_.Add(static_cast<size_t>(deadline.need), spare_.size() - 1, deadline.copy.count());
}

bool Deadlines::IsLate(const ResidencyPlan& plan) const {
  if (spare_.size() == 0 || plan.position() >= plan.horizon()) return false;
  const int64_t now = plan.TimeOf(plan.position()).count();
  return spare_.Least(static_cast<size_t>(plan.position()), spare_.size() - 1) < now;
}

}  // namespace ravenstore::core::plan
