#include "sim/paged_units.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace ravenstore::sim {

using core::Bytes;
using core::plan::IsSlot;
using core::plan::kNoPosition;
using core::plan::MapChoice;
using core::plan::MoveQueues;
using core::plan::PageSupply;
using core::plan::Position;
using core::plan::ResidencyPlan;
using core::plan::Unit;
using core::plan::UnitSnapshot;
using core::plan::UnitSpan;
using core::plan::UnitState;
using Phase = UnitState::Phase;

PagedUnits::PagedUnits(const core::plan::PlanLimits& limits, double copy_in_rate, Bytes coming_most)
    : limits_(limits), copy_in_rate_(copy_in_rate), coming_most_(coming_most) {
  supply_.never_used = limits.pages;
}

core::plan::MoveView PagedUnits::view() const {
  return {.units = units_,
          .queues = queues_,
          .plan = plan_,
          .deadlines = deadlines_,
          .supply = supply_,
          .slot_pages = slot_pages_,
          .limits = limits_,
          .coming = coming_,
          .coming_most = coming_most_,
          .leaving = leaving_};
}

void PagedUnits::Ensure(const UnitSpan& span) {
  if (span.end() > units_.size()) {
    units_.resize(span.end());
    changes_.resize(span.end());
  }
  if (!span.is_slot()) return;
  UnitState& slot = units_[span.first];
  const bool is_free = slot.live == 0 && !slot.InUse() && slot.phase == Phase::kAway;
  RAVEN_CHECK(is_free || slot.slots_per_page == span.slots_per_page);
  slot.slots_per_page = span.slots_per_page;
}

void PagedUnits::Update(Unit unit) {
  UnitState& state = units_[unit];
  // An empty slot ceases to exist. An empty page stays mapped until its memory is needed.
  const bool is_empty =
      state.phase == Phase::kResident && !state.InUse() && state.live == 0 && !state.leaving;
  if (is_empty && IsSlot(unit)) return Release(unit);
  queues_.Update(unit, state, plan_);
  if (queues_.Contains(MoveQueues::Queue::kComes, unit)) {
    const double bytes = static_cast<double>(state.bytes.count());
    deadlines_.Set(unit, state.demanded ? kNoPosition : plan_.NextNeed(unit),
                   core::FromSeconds(bytes / copy_in_rate_));
  } else {
    deadlines_.Clear(unit);
  }
}

bool PagedUnits::Pin(Unit unit) {
  UnitState& state = units_[unit];
  if (!state.InUse()) in_use_ += WeightOf(unit);
  ++state.pins;
  plan_.Withdraw(unit);
  state.forced = false;
  state.last_use = ++uses_;
  if (state.phase != Phase::kResident) state.demanded = true;
  Update(unit);
  return state.demanded;
}

void PagedUnits::Unpin(Unit unit) {
  RAVEN_CHECK(units_[unit].pins > 0);
  --units_[unit].pins;
  ++units_[unit].tickets;
}

void PagedUnits::Reach(Unit unit) {
  RAVEN_CHECK(units_[unit].tickets > 0);
  --units_[unit].tickets;
  if (!units_[unit].InUse()) in_use_ -= WeightOf(unit);
  Update(unit);
}

bool PagedUnits::FitsInUse(const UnitSpan& span) const {
  Bytes needed = in_use_;
  for (uint32_t i = 0; i < span.count; ++i)
    if (!units_[span[i]].InUse()) needed += WeightOf(span[i]);
  return needed.count() <= limits_.page.count() * limits_.pages;
}

void PagedUnits::AddTensor(Unit unit, Bytes bytes) {
  UnitState& state = units_[unit];
  RAVEN_CHECK(state.phase == Phase::kResident);
  RAVEN_CHECK(state.InUse());
  ++state.live;
  state.bytes += bytes;
  Modify(unit);
}

void PagedUnits::RemoveTensor(Unit unit, Bytes bytes) {
  UnitState& state = units_[unit];
  RAVEN_CHECK(state.live > 0);
  --state.live;
  state.bytes -= bytes;
  if (state.live == 0) {
    state.dirty = false;
    state.forced = false;
    plan_.Withdraw(unit);
    ++changes_[unit].now;
  }
  Update(unit);
}

void PagedUnits::Modify(Unit unit) {
  units_[unit].dirty = true;
  ++changes_[unit].now;
  Update(unit);
}

std::vector<UnitSnapshot> PagedUnits::Snapshot() const {
  std::vector<UnitSnapshot> snapshot;
  snapshot.reserve(units_.size());
  for (const UnitState& state : units_) {
    snapshot.push_back({.pins = state.pins,
                        .live = state.live,
                        .held = state.phase != Phase::kAway,
                        .dirty = state.dirty,
                        .slots_per_page = state.slots_per_page});
  }
  return snapshot;
}

void PagedUnits::SetPlan(ResidencyPlan plan) {
  plan_ = std::move(plan);
  deadlines_.Restart(plan_);
  for (const auto& call : plan_.calls()) {
    if (call.units.count > 0) Ensure(call.units);
  }
  for (Unit unit = 0; unit < units_.size(); ++unit) {
    units_[unit].forced = false;
    Update(unit);
  }
}

void PagedUnits::MoveTo(Position position) {
  passed_.clear();
  plan_.MoveTo(position, &passed_);
  for (const Unit unit : passed_) Update(unit);
}

void PagedUnits::Announce(const UnitSpan& span, Position need) {
  for (uint32_t i = 0; i < span.count; ++i) {
    plan_.ClearLeave(span[i]);
    plan_.Announce(span[i], need);
    Update(span[i]);
  }
}

PageSupply::Steps PagedUnits::StartMap(const MapChoice& choice) {
  UnitState& state = units_[choice.unit];
  RAVEN_CHECK(state.phase == Phase::kAway);
  const bool is_slot = IsSlot(choice.unit);
  PageSupply::Steps steps;
  if (choice.from == MapChoice::From::kSupply) {
    supply_.Take(choice.source);
    steps = PageSupply::StepsOf(choice.source, is_slot);
  } else if (choice.from == MapChoice::From::kDead) {
    RAVEN_CHECK(units_[choice.dead].live == 0);
    RAVEN_CHECK(!units_[choice.dead].InUse());
    units_[choice.dead].phase = Phase::kAway;
    Update(choice.dead);
    steps = PageSupply::StepsOf(PageSupply::Source::kStale, is_slot);
  } else if (choice.from == MapChoice::From::kSparse) {
    Compact();
    supply_.Take(PageSupply::Source::kEmpty);
    steps = PageSupply::StepsOf(PageSupply::Source::kEmpty, is_slot);
  }
  if (choice.from == MapChoice::From::kSlotRoom) {
    slot_pages_.Join(choice.unit, state.slots_per_page);
  } else if (is_slot) {
    slot_pages_.JoinEmpty(choice.unit, state.slots_per_page);
  }
  state.phase = Phase::kMapping;
  if (state.live > 0) {
    coming_ += WeightOf(choice.unit);
    changes_[choice.unit].coming = true;
    plan_.Take(WeightOf(choice.unit), plan_.PlannedNeed(choice.unit));
  }
  Update(choice.unit);
  return steps;
}

void PagedUnits::Compact() {
  const auto is_idle = [this](Unit slot) { return units_[slot].IsIdle(); };
  const std::vector<Unit> slots = slot_pages_.FindSparse(is_idle);
  slot_pages_.Empty(slots);
  ++supply_.empty;
  for (const Unit slot : slots) compacted_ += WeightOf(slot);
}

bool PagedUnits::FinishMap(Unit unit) {
  UnitState& state = units_[unit];
  if (state.live == 0) return Arrive(unit);
  state.phase = Phase::kQueued;
  Update(unit);
  return false;
}

bool PagedUnits::Arrive(Unit unit) {
  UnitState& state = units_[unit];
  state.phase = Phase::kResident;
  if (std::exchange(changes_[unit].coming, false)) coming_ -= WeightOf(unit);
  const bool demanded = std::exchange(state.demanded, false);
  Update(unit);
  return demanded;
}

void PagedUnits::StartIn(Unit unit) {
  RAVEN_CHECK(units_[unit].phase == Phase::kQueued);
  units_[unit].phase = Phase::kCopying;
  Update(unit);
}

bool PagedUnits::FinishIn(Unit unit) {
  units_[unit].dirty = false;
  return Arrive(unit);
}

void PagedUnits::StartOut(Unit unit) {
  UnitState& state = units_[unit];
  RAVEN_CHECK(state.phase == Phase::kResident);
  RAVEN_CHECK(!state.InUse());
  state.leaving = true;
  changes_[unit].copied = changes_[unit].now;
  ++leaving_;
  Update(unit);
}

void PagedUnits::FinishOut(Unit unit) {
  UnitState& state = units_[unit];
  --leaving_;
  state.leaving = false;
  if (changes_[unit].copied == changes_[unit].now) state.dirty = false;
  Update(unit);
}

void PagedUnits::Drop(Unit unit) {
  UnitState& state = units_[unit];
  RAVEN_CHECK(!state.InUse());
  RAVEN_CHECK(!state.dirty);
  RAVEN_CHECK(state.live > 0);
  const Position leaves = plan_.LeavesAt(unit);
  const bool planned = leaves != kNoPosition && !state.forced;
  plan_.Release(WeightOf(unit), planned ? leaves : plan_.PlannedNeed(unit));
  if (planned) plan_.ClearLeave(unit);
  Release(unit);
}

void PagedUnits::Release(Unit unit) {
  UnitState& state = units_[unit];
  state.phase = Phase::kAway;
  state.forced = false;
  if (!IsSlot(unit)) {
    ++supply_.stale;
  } else if (slot_pages_.Leave(unit)) {
    ++supply_.empty;
  }
  Update(unit);
}

void PagedUnits::Force(Unit unit) {
  units_[unit].forced = true;
  Update(unit);
}

void PagedUnits::StartUnmap() {
  supply_.Take(PageSupply::Source::kStale);
  ++supply_.unmapping;
}

void PagedUnits::FinishUnmap() {
  --supply_.unmapping;
  ++supply_.unmapped;
}

void PagedUnits::CheckPages() const {
  uint32_t pages = supply_.total() + slot_pages_.pages();
  for (Unit unit = 0; unit < units_.size(); ++unit) {
    const UnitState& state = units_[unit];
    if (!IsSlot(unit)) pages += state.phase != Phase::kAway ? 1 : 0;
    RAVEN_CHECK(slot_pages_.Contains(unit) == (IsSlot(unit) && state.phase != Phase::kAway));
    RAVEN_CHECK(state.live > 0 || state.bytes == Bytes{});
  }
  RAVEN_CHECK(pages == limits_.pages);
}

}  // namespace ravenstore::sim
