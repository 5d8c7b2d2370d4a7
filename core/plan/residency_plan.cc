#include "core/plan/residency_plan.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/plan/plan_builder.h"
#include "core/plan/shared_plan.h"

namespace ravenstore::core::plan {

const ResidencyPlan::Gap ResidencyPlan::kNoGap{};

ResidencyPlan ResidencyPlan::Make(std::span<const PlannedCall> calls,
                                  std::span<const UnitSnapshot> units, const PlanLimits& limits) {
  return PlanBuilder(calls, units, limits).Build();
}

std::vector<ResidencyPlan> ResidencyPlan::MakeShared(std::span<const Forecast> clients,
                                                     const PlanLimits& limits) {
  return SharedPlan(clients).Build(limits);
}

Duration ResidencyPlan::TimeOf(Position position) const {
  if (calls_.empty()) return Duration{0};
  return call(std::min(position, horizon() - 1)).at;
}

Duration ResidencyPlan::TimeFromNow(Position position) const {
  if (position == kNoPosition) return Duration::max();
  if (position < position_) return Duration{0};
  const Duration now = position_ == 0 ? Duration{0} : TimeOf(position_ - 1);
  return std::max(Duration{0}, TimeOf(position) - now);
}

const ResidencyPlan::Gap& ResidencyPlan::GapOf(Unit unit) const {
  return unit < now_.size() ? gaps_[now_[unit]] : kNoGap;
}

std::span<const ResidencyPlan::Gap> ResidencyPlan::GapsOf(Unit unit) const {
  if (unit >= now_.size()) return {};
  return std::span(gaps_).subspan(first_gap_[unit], first_gap_[unit + 1] - first_gap_[unit]);
}

void ResidencyPlan::MoveTo(Position position, std::vector<Unit>* passed) {
  position_ = std::min(position, horizon());
  for (; passed_ < position_; ++passed_) {
    const UnitSpan& units = call(passed_).units;
    for (uint32_t i = 0; i < units.count; ++i) {
      uint32_t& gap = now_[units[i]];
      if (gaps_[gap].need != passed_) continue;
      ++gap;
      RAVEN_CHECK(gap < first_gap_[units[i] + 1]);
      passed->push_back(units[i]);
    }
  }
}

void ResidencyPlan::ClearLeave(Unit unit) {
  if (unit < now_.size()) gaps_[now_[unit]].leaves = kNoPosition;
}

void ResidencyPlan::Announce(Unit unit, Position need) {
  RAVEN_CHECK(empty());
  if (unit >= announced_.size()) announced_.resize(unit + 1, kNoPosition);
  announced_[unit] = need;
}

size_t ResidencyPlan::SlackPosition(Position position) const {
  const Position own = std::clamp(position, position_, horizon());
  return static_cast<size_t>(shared_.empty() ? own : shared_[static_cast<size_t>(own)]);
}

bool ResidencyPlan::Fits(Bytes weight, Position need) const {
  return !slack_ || slack_->Least(SlackPosition(position_), SlackPosition(need)) >=
                        static_cast<int64_t>(weight.count());
}

void ResidencyPlan::Take(Bytes weight, Position until) {
  if (!slack_) return;
  slack_->Add(SlackPosition(position_), SlackPosition(until),
              -static_cast<int64_t>(weight.count()));
}

void ResidencyPlan::Release(Bytes weight, Position until) {
  if (!slack_) return;
  slack_->Add(SlackPosition(position_), SlackPosition(until), static_cast<int64_t>(weight.count()));
}

void ResidencyPlan::SetPages(uint32_t pages, PlanLimits* limits) {
  const uint32_t before = std::exchange(limits->pages, pages);
  if (pages > before) Release(limits->page * (pages - before), kNoPosition);
  if (pages < before) Take(limits->page * (before - pages), kNoPosition);
}

int64_t ResidencyPlan::SlackAt(Position position) const {
  return slack_->Least(SlackPosition(position), SlackPosition(position));
}

}  // namespace ravenstore::core::plan
