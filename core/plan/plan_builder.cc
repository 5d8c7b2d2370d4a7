#include "core/plan/plan_builder.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "core/check.h"

namespace ravenstore::core::plan {

namespace {

// A need beyond the horizon counts as this much later than the last call. Such units then compete
// with each other alone; a shorter time lets a unit that is needed within the plan leave instead.
constexpr Duration kBeyondHorizon = std::chrono::seconds(1000);

size_t UnitsOf(std::span<const PlannedCall> calls, std::span<const UnitSnapshot> units) {
  size_t count = units.size();
  for (const PlannedCall& call : calls) count = std::max<size_t>(count, call.units.end());
  return count;
}

// A put or a free. Returns true if nothing lives in the unit any more. Forecasts can be wrong: the
// unit may be in no call then, or nothing may live in it.
bool EndUse(const PlannedCall& call, UnitSnapshot* unit) {
  if (call.unpins && unit->pins > 0) --unit->pins;
  if (!call.dies || unit->live == 0) return false;
  return --unit->live == 0;
}

}  // namespace

PlanBuilder::PlanBuilder(std::span<const PlannedCall> calls, std::span<const UnitSnapshot> units,
                         const PlanLimits& limits)
    : calls_(calls),
      given_(units),
      limits_(limits),
      units_(UnitsOf(calls, units)),
      order_(units_.size()),
      copies_(limits_.pools),
      away_(units_.size()) {}

ResidencyPlan PlanBuilder::Build() {
  plan_.calls_.assign(calls_.begin(), calls_.end());
  FindGaps();
  Restart();
  std::vector<int64_t> free;
  free.reserve(calls_.size() + 1);
  if (!calls_.empty()) Shrink(0);
  free.push_back(Free());
  for (Position i = 0; i < plan_.horizon(); ++i) {
    Apply(plan_.call(i));
    Shrink(i);
    free.push_back(Free());
  }
  plan_.slack_ = std::make_shared<RangeMinimum>();
  plan_.slack_->Assign(free);
  for (Unit unit = 0; unit < units_.size(); ++unit) plan_.now_[unit] = plan_.first_gap_[unit];
  return std::move(plan_);
}

void PlanBuilder::CountUses() {
  plan_.first_gap_.assign(units_.size() + 1, 0);
  for (const PlannedCall& call : calls_) {
    for (uint32_t i = 0; i < call.units.count; ++i) {
      const Unit unit = call.units[i];
      UnitSnapshot& of = units_[unit];
      if (!Pins(call.kind)) {
        EndUse(call, &of);
        continue;
      }
      if (!of.held && of.live == 0 && of.pins == 0) of.slots_per_page = call.units.slots_per_page;
      if (of.pins++ == 0) ++plan_.first_gap_[unit + 1];
    }
  }
}

void PlanBuilder::FindGaps() {
  std::copy(given_.begin(), given_.end(), units_.begin());
  CountUses();
  for (Unit unit = 0; unit < units_.size(); ++unit)
    plan_.first_gap_[unit + 1] += plan_.first_gap_[unit] + 1;
  plan_.gaps_.resize(plan_.first_gap_.back());
  plan_.now_.assign(plan_.first_gap_.begin(), plan_.first_gap_.end() - 1);
  for (Unit unit = 0; unit < units_.size(); ++unit) {
    UnitSnapshot& of = units_[unit];
    const uint32_t slots = of.slots_per_page;
    of = unit < given_.size() ? given_[unit] : UnitSnapshot{};
    of.slots_per_page = slots;
  }
  for (Position i = 0; i < plan_.horizon(); ++i) {
    const PlannedCall& call = plan_.call(i);
    for (uint32_t k = 0; k < call.units.count; ++k) {
      const Unit unit = call.units[k];
      UnitSnapshot& of = units_[unit];
      if (Pins(call.kind)) {
        of.live += call.kind == CallKind::kCreate ? 1 : 0;
        if (of.pins++ > 0) continue;
        GapOf(unit).need = i;
        ++plan_.now_[unit];
      } else {
        if (EndUse(call, &of)) GapOf(unit).dies = i;
      }
    }
  }
}

void PlanBuilder::Restart() {
  for (Unit unit = 0; unit < units_.size(); ++unit) {
    plan_.now_[unit] = plan_.first_gap_[unit];
    UnitSnapshot& of = units_[unit];
    const uint32_t slots = of.slots_per_page;
    of = unit < given_.size() ? given_[unit] : UnitSnapshot{};
    of.slots_per_page = slots;
    RAVEN_CHECK(of.live == 0 || of.dirty || of.pool < limits_.pools.size());
    CountNeeds(unit, 0, 0);
    if (!of.held && of.live > 0) BeginAway(unit);
    const bool held = of.held && (of.live > 0 || of.pins > 0);
    of.held = false;
    if (!held) continue;
    Hold(unit);
    if (of.pins == 0) Idle(unit, Duration{0});
  }
}

void PlanBuilder::Apply(const PlannedCall& call) {
  for (uint32_t i = 0; i < call.units.count; ++i) {
    if (Pins(call.kind)) {
      Acquire(call, call.units[i]);
    } else {
      Yield(call, call.units[i]);
    }
  }
}

void PlanBuilder::Acquire(const PlannedCall& call, Unit unit) {
  UnitSnapshot& of = units_[unit];
  const UnitSnapshot before = of;
  if (!of.held) {
    EndAway(unit);
    Hold(unit);
  }
  if (call.kind == CallKind::kCreate) {
    ++of.live;
    of.dirty = true;
  }
  ++of.pins;
  CountNeeds(unit, before.pins, before.live);
  if (before.pins > 0) return;
  ++plan_.now_[unit];
  order_.Remove(unit);
}

void PlanBuilder::Yield(const PlannedCall& call, Unit unit) {
  UnitSnapshot& of = units_[unit];
  const UnitSnapshot before = of;
  of.dirty |= call.modifies;
  EndUse(call, &of);
  CountNeeds(unit, before.pins, before.live);
  if (!of.held && of.live == 0) EndAway(unit);
  if (of.pins > 0 || !of.held) return;
  if (of.live == 0) {
    order_.Remove(unit);
    Drop(unit);
  } else {
    order_.Remove(unit);
    Idle(unit, call.at + late_);
  }
}

void PlanBuilder::Shrink(Position position) {
  while (held_.pages() > limits_.pages) {
    const Duration now = plan_.call(position).at + late_;
    const std::optional<Unit> victim = Victim(position, now);
    if (!victim) {
      ++plan_.over_budget_;
      return;
    }
    if (!Leave(*victim, position, now)) order_.Remove(*victim);
  }
}

std::optional<Unit> PlanBuilder::Victim(Position position, Duration now) {
  const auto latest = order_.Latest();
  if (!latest) return std::nullopt;
  const auto out = order_.LatestOut(now, copies_.LinkFree(limits_.page));
  if (!out || out->rank.leaving_class != latest->rank.leaving_class) return latest->unit;
  const Duration begin = plan_.call(position).at;
  const Duration least = begin + (TimeOf(latest->rank.need) - begin) / 2;
  return TimeOf(out->rank.need) >= least ? out->unit : latest->unit;
}

bool PlanBuilder::Leave(Unit unit, Position position, Duration now) {
  UnitSnapshot& of = units_[unit];
  // A copy whose pool is full of others' was dropped for one of them.
  if (!of.dirty && !copies_.HasRoom(of.pool, WeightOf(unit))) of.dirty = true;
  if (of.dirty && !CopyOut(unit, now)) return false;
  BeginAway(unit);
  order_.Remove(unit);
  Drop(unit);
  GapOf(unit).leaves = position;
  return true;
}

bool PlanBuilder::CopyOut(Unit unit, Duration now) {
  UnitSnapshot& of = units_[unit];
  const PoolNumber pool = copies_.Cheapest(WeightOf(unit));
  if (pool == kNoPool) return false;
  const Duration end = copies_.Copy(pool, WeightOf(unit), order_.Since(unit));
  late_ += std::max(Duration{0}, end - now);
  of.pool = pool;
  of.dirty = false;
  GapOf(unit).pool = pool;
  return true;
}

void PlanBuilder::BeginAway(Unit unit) {
  away_[unit] = true;
  copies_.Add(units_[unit].pool, WeightOf(unit));
}

void PlanBuilder::EndAway(Unit unit) {
  if (!away_[unit]) return;
  away_[unit] = false;
  copies_.Remove(units_[unit].pool, WeightOf(unit));
}

void PlanBuilder::Hold(Unit unit) {
  UnitSnapshot& of = units_[unit];
  of.held = true;
  held_.Add(of.slots_per_page);
}

void PlanBuilder::Drop(Unit unit) {
  UnitSnapshot& of = units_[unit];
  of.held = false;
  held_.Remove(of.slots_per_page);
}

void PlanBuilder::CountNeeds(Unit unit, uint32_t pins, uint32_t live) {
  const UnitSnapshot& of = units_[unit];
  const auto count = [&of](bool was, bool is, HeldPages* pages) {
    if (!was && is) pages->Add(of.slots_per_page);
    if (was && !is) pages->Remove(of.slots_per_page);
  };
  count(pins > 0, of.pins > 0, &pinned_);
  count(pins > 0 || live > 0, of.pins > 0 || of.live > 0, &alive_);
  plan_.pages_held_ = std::max(plan_.pages_held_, pinned_.pages());
  plan_.pages_alive_ = std::max(plan_.pages_alive_, alive_.pages());
}

void PlanBuilder::Idle(Unit unit, Duration since) {
  const UnitSnapshot& of = units_[unit];
  if (of.dirty) {
    order_.AddDirty(unit, RankOf(unit), since, copies_.OutOf(WeightOf(unit)));
  } else {
    order_.AddClean(unit, RankOf(unit));
  }
}

EvictionRank PlanBuilder::RankOf(Unit unit) const {
  const ResidencyPlan::Gap& gap = plan_.gaps_[plan_.now_[unit]];
  return {LeavingClass(units_[unit].priority), std::min(gap.need, gap.dies)};
}

Duration PlanBuilder::TimeOf(Position position) const {
  if (position < plan_.horizon()) return plan_.call(position).at;
  return plan_.call(plan_.horizon() - 1).at + kBeyondHorizon;
}

int64_t PlanBuilder::Free() const {
  const int64_t pages = int64_t{limits_.pages} - held_.pages();
  return pages * static_cast<int64_t>(limits_.page.count());
}

}  // namespace ravenstore::core::plan
