#include "core/books/page_books.h"

#include <algorithm>
#include <utility>

#include "core/books/page_views.h"
#include "core/check.h"

namespace ravenstore::core {

using plan::IsSlot;
using plan::kNoPosition;
using plan::MapChoice;
using plan::MoveQueues;
using plan::PageSupply;
using plan::Position;
using plan::ResidencyPlan;
using plan::Unit;
using plan::UnitSpan;
using plan::UnitState;
using Sum = UnitTotals::Sum;

namespace {

// The plan counts the unit as held until it leaves, or else until its next need. It is not.
void ReleasePlanned(Unit unit, const UnitState& state, Bytes weight, ResidencyPlan* plan) {
  const Position leaves = plan->LeavesAt(unit);
  const bool planned = leaves != kNoPosition && !state.forced;
  plan->Release(weight, planned ? leaves : plan->PlannedNeed(unit));
  if (planned) plan->ClearLeave(unit);
}

}  // namespace

PageBooks::PageBooks(const Options& options)
    : options_(options),
      limits_(options.limits),
      queues_(static_cast<plan::PoolNumber>(limits_.pools.size())),
      deadlines_(static_cast<plan::PoolNumber>(limits_.pools.size())),
      memory_(limits_.page, limits_.pages),
      copies_(limits_.pools, limits_.page) {}

void PageBooks::Ensure(const UnitSpan& span) {
  if (span.end() > units_.size()) {
    units_.resize(span.end());
    copies_.Resize(span.end());
    totals_.Resize(span.end());
  }
  if (!span.is_slot()) return;
  UnitState& slot = units_[span.first];
  const bool is_free = slot.live == 0 && !slot.InUse() && slot.life == PageState::kAway;
  RAVEN_CHECK(is_free || slot.slots_per_page == span.slots_per_page);
  slot.slots_per_page = span.slots_per_page;
}

void PageBooks::Apply(Unit unit, PageEvent event) {
  UnitState& of = units_[unit];
  const auto step = StepOf(of.life, event);
  RAVEN_CHECK(step.has_value());
  of.life = step->next;
  if (step->copy == PageStep::Copy::kFree) {
    copies_.EndComing(unit);
    const auto pool = std::exchange(of.pool, plan::kNoPool);
    if (pool != plan::kNoPool) copies_.Remove(unit, pool);
  }
  if (of.pool != plan::kNoPool) copies_.SetRedundant(unit, of.pool, of.life == PageState::kClean);
  if (step->memory == PageStep::Memory::kRelease) memory_.Leave(unit, of.slots_per_page);
  if (step->words != PageStep::Words::kPublish) return;
  copies_.EndComing(unit);
  arrivals_.push_back({unit, std::exchange(of.demanded, false)});
}

void PageBooks::Update(Unit unit) {
  const UnitState& state = units_[unit];
  // An empty slot ceases to exist. An empty page stays mapped until its memory is needed.
  if (IsSlot(unit) && state.life == PageState::kClean && state.live == 0 && !state.InUse())
    Apply(unit, PageEvent::kRelease);
  queues_.Update(unit, state, plan_);
  const Bytes memory = WeightOf(*this, unit);
  totals_.SetOccupied(unit, state.slots_per_page, state.live > 0 || state.InUse());
  totals_.Set(unit, Sum::kInUse, memory, state.InUse());
  totals_.Set(unit, Sum::kReady, memory, queues_.Contains(MoveQueues::Queue::kIdleClean, unit));
  totals_.Set(unit, Sum::kAwaited, memory, state.IsAwaited());
  if (queues_.Contains(MoveQueues::Queue::kReturns, unit)) {
    deadlines_.Set(unit, state.demanded ? kNoPosition : plan_.NextNeed(unit), state.pool,
                   limits_.pools[state.pool].InOf(state.bytes));
  } else {
    deadlines_.Clear(unit);
  }
}

bool PageBooks::Pin(Unit unit, bool in_place) {
  UnitState& state = units_[unit];
  if (in_place) {
    RAVEN_CHECK(state.life == PageState::kAway);
    RAVEN_CHECK(!state.InUse());
  }
  ++(in_place ? state.in_place : state.pins);
  state.forced = false;
  state.contested = false;
  state.last_use = ++uses_;
  worth_.Use(&state);
  if (!state.IsResident() && !in_place) state.demanded = true;
  Update(unit);
  return state.demanded && !in_place;
}

void PageBooks::Unpin(Unit unit) {
  RAVEN_CHECK(units_[unit].pins > 0);
  --units_[unit].pins;
  ++units_[unit].tickets;
}

void PageBooks::Reach(Unit unit, bool in_place) {
  UnitState& state = units_[unit];
  uint32_t& uses = in_place ? state.in_place : state.tickets;
  RAVEN_CHECK(uses > 0);
  --uses;
  if (!in_place && !state.InUse()) state.demanded = false;
  Update(unit);
}

void PageBooks::AddTensor(Unit unit, Bytes bytes) {
  UnitState& state = units_[unit];
  RAVEN_CHECK(state.IsResident());
  RAVEN_CHECK(state.InUse());
  Apply(unit, PageEvent::kChange);
  ++state.live;
  state.bytes += bytes;
  Update(unit);
}

void PageBooks::RemoveTensor(Unit unit, Bytes bytes, bool with_copy) {
  UnitState& state = units_[unit];
  RAVEN_CHECK(state.live > 0);
  state.contested = false;
  if (state.live == 1) {
    RAVEN_CHECK(state.in_place == 0);
    state.forced = false;
    state.uses = 0;
    state.demanded &= state.InUse();
    Apply(unit, PageEvent::kEmpty);
  }
  --state.live;
  state.bytes -= bytes;
  if (with_copy && state.live > 0) copies_.Shrink(unit, state.pool, bytes);
  Update(unit);
}

void PageBooks::AddAwayTensor(Unit unit, plan::PoolNumber pool, Bytes bytes) {
  UnitState& state = units_[unit];
  RAVEN_CHECK(state.live == 0 || state.pool == pool);
  ++state.live;
  state.bytes += bytes;
  state.pool = pool;
  // The copy may have the bytes of a tensor whose place this one has, and whose end may come later.
  copies_.Add(unit, pool, std::min(state.bytes, WeightOf(*this, unit)));
  Apply(unit, PageEvent::kCopyGiven);
  Update(unit);
}

void PageBooks::SetPriority(Unit unit, Priority priority) {
  if (std::exchange(units_[unit].priority, priority) != priority) Update(unit);
}

void PageBooks::EndUses() {
  for (Unit unit = 0; unit < units_.size(); ++unit) {
    UnitState& state = units_[unit];
    state.pins = state.tickets = state.in_place = 0;
    state.demanded = state.contested = false;
    if (state.live == 0) {
      Update(unit);
    } else {
      state.live = 1;
      RemoveTensor(unit, state.bytes);
    }
  }
}

void PageBooks::Demand(Unit unit) {
  RAVEN_CHECK(units_[unit].live > 0);
  if (units_[unit].IsResident()) return;
  units_[unit].demanded = true;
  Update(unit);
}

void PageBooks::SetPlan(ResidencyPlan plan) {
  plan_ = std::move(plan);
  deadlines_.Restart(plan_);
  // A slot has its size class from its tensor, which may have come after the plan was begun.
  Unit end = 0;
  for (const auto& call : plan_.calls()) end = std::max(end, call.units.end());
  Ensure({.first = end - end % 2, .count = 1});
  for (Unit unit = 0; unit < units_.size(); ++unit) {
    units_[unit].forced = false;
    Update(unit);
  }
}

void PageBooks::MoveTo(Position position) {
  passed_.clear();
  plan_.MoveTo(position, &passed_);
  for (const Unit unit : passed_) {
    if (units_[unit].in_place > 0)
      ReleasePlanned(unit, units_[unit], WeightOf(*this, unit), &plan_);
    Update(unit);
  }
}

void PageBooks::Announce(Unit unit, Position need) {
  plan_.Announce(unit, need);
  Update(unit);
}

std::optional<PageSupply::Released> PageBooks::ReleasePage() {
  if (!memory_.supply().Find(false)) {
    const auto dead = queues_.First(MoveQueues::Queue::kDead);
    if (!dead) return std::nullopt;
    Apply(dead->unit, PageEvent::kRelease);
    Update(dead->unit);
  }
  return memory_.Release();
}

PageMemory::Mapping PageBooks::StartMap(const MapChoice& choice) {
  const Unit unit = choice.unit;
  auto source = choice.source;
  if (choice.from == MapChoice::From::kDead) {
    RAVEN_CHECK(units_[choice.dead].live == 0);
    RAVEN_CHECK(units_[choice.dead].IsFree());
    // A dead page is taken where no other is free: it is then the only stale one.
    Apply(choice.dead, PageEvent::kRelease);
    Update(choice.dead);
    source = PageSupply::Source::kStale;
  }
  RAVEN_CHECK(choice.from != MapChoice::From::kSparse);
  const uint32_t slots = units_[unit].slots_per_page;
  const PageMemory::Mapping mapping = choice.from == MapChoice::From::kSlotRoom
                                          ? memory_.Join(unit, slots)
                                          : memory_.Take(unit, slots, source);
  Apply(unit, PageEvent::kMap);
  if (units_[unit].live > 0) {
    copies_.BeginComing(unit, units_[unit].pool, WeightOf(*this, unit));
    plan_.Take(WeightOf(*this, unit), plan_.PlannedNeed(unit));
  }
  Update(unit);
  return mapping;
}

void PageBooks::FinishMap(Unit unit) {
  Apply(unit, units_[unit].live > 0 ? PageEvent::kMapped : PageEvent::kMappedEmpty);
  Update(unit);
}

void PageBooks::StartIn(Unit unit) {
  Apply(unit, PageEvent::kCopyIn);
  Update(unit);
}

void PageBooks::FinishIn(Unit unit, bool ok) {
  UnitState& state = units_[unit];
  if (state.life == PageState::kArriving && state.live == 0) {
    Apply(unit, PageEvent::kArrivedEmpty);
  } else if (ok) {
    Apply(unit, PageEvent::kArrived);
  } else if (state.InUse()) {
    Apply(unit, PageEvent::kTryAgain);
  } else {
    copies_.EndComing(unit);
    if (state.live > 0) plan_.Release(WeightOf(*this, unit), plan_.PlannedNeed(unit));
    state.demanded = false;
    Apply(unit, PageEvent::kNotArrived);
  }
  Update(unit);
}

void PageBooks::StartOut(Unit unit, plan::PoolNumber pool) {
  RAVEN_CHECK(!units_[unit].InUse());
  RAVEN_CHECK(copies_.pools().HasRoom(pool, units_[unit].bytes));
  totals_.SetLeaving(unit, queues_.Contains(MoveQueues::Queue::kLeaves, unit));
  units_[unit].pool = pool;
  copies_.Add(unit, pool, units_[unit].bytes);
  Apply(unit, PageEvent::kCopyOut);
  Update(unit);
}

void PageBooks::FinishOut(Unit unit, bool ok) {
  totals_.SetLeaving(unit, false);
  Apply(unit, ok ? PageEvent::kCopied : PageEvent::kNotCopied);
  // Not tried again in this gap: a copy that always fails would be repeated without end.
  if (!ok) {
    units_[unit].forced = false;
    plan_.ClearLeave(unit);
  }
  Update(unit);
}

void PageBooks::Drop(Unit unit) {
  UnitState& state = units_[unit];
  RAVEN_CHECK(!state.InUse());
  RAVEN_CHECK(state.live > 0);
  ReleasePlanned(unit, state, WeightOf(*this, unit), &plan_);
  state.forced = false;
  Apply(unit, PageEvent::kRelease);
  Update(unit);
}

void PageBooks::Force(Unit unit) {
  if (plan_.empty() && plan_.NextNeed(unit) == kNoPosition) worth_.Leaves(units_[unit]);
  units_[unit].forced = true;
  Update(unit);
}

void PageBooks::MoveCopy(Unit unit, plan::PoolNumber pool) {
  UnitState& state = units_[unit];
  if (pool == plan::kNoPool) {
    RAVEN_CHECK(state.life == PageState::kClean);
    Apply(unit, PageEvent::kDropCopy);
  } else {
    RAVEN_CHECK(CanMoveOn(state));
    copies_.Move(unit, std::exchange(state.pool, pool), pool);
  }
  Update(unit);
}

std::vector<PageMemory::SlotMove> PageBooks::Compact(const std::vector<Unit>& slots) {
  return memory_.Empty(slots, units_[slots.front()].slots_per_page);
}

void PageBooks::TakeArrivals(std::vector<Arrival>* arrivals) {
  arrivals->insert(arrivals->end(), arrivals_.begin(), arrivals_.end());
  arrivals_.clear();
}

}  // namespace ravenstore::core
