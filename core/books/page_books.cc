#include "core/books/page_books.h"

#include <algorithm>
#include <utility>

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
using plan::UnitSnapshot;
using plan::UnitSpan;
using plan::UnitState;
using Sum = UnitTotals::Sum;

PageBooks::PageBooks(const Options& options)
    : options_(options),
      limits_(options.limits),
      queues_(static_cast<plan::PoolNumber>(limits_.pools.size())),
      deadlines_(static_cast<plan::PoolNumber>(limits_.pools.size())),
      memory_(limits_.page, limits_.pages),
      copies_(options_.limits.pools, limits_.page) {}

plan::MoveView PageBooks::view() const {
  return {.units = units_,
          .queues = queues_,
          .plan = plan_,
          .deadlines = deadlines_,
          .supply = memory_.supply(),
          .slot_pages = memory_.slot_pages(),
          .limits = limits_,
          .copies = copies_.pools(),
          .coming_most = options_.coming_most,
          .leaving = totals_.leaving(),
          .expected = expected_,
          .surplus = surplus(),
          .ready = totals_[Sum::kReady],
          .growth = growth_};
}

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
  if (step->copy == PageStep::Copy::kFree) FreeCopy(unit);
  if (of.pool != plan::kNoPool) copies_.SetRedundant(unit, of.pool, IsRedundant(unit));
  if (step->memory == PageStep::Memory::kRelease) memory_.Leave(unit, of.slots_per_page);
  if (step->words != PageStep::Words::kPublish) return;
  copies_.EndComing(unit);
  arrivals_.push_back({unit, std::exchange(of.demanded, false)});
}

bool PageBooks::IsRedundant(Unit unit) const {
  return units_[unit].life == PageState::kClean && units_[unit].pool != plan::kNoPool;
}

void PageBooks::ReserveCopy(Unit unit, plan::PoolNumber pool) {
  units_[unit].pool = pool;
  copies_.Add(unit, pool, units_[unit].bytes);
}

void PageBooks::FreeCopy(Unit unit) {
  copies_.EndComing(unit);
  const auto pool = std::exchange(units_[unit].pool, plan::kNoPool);
  if (pool != plan::kNoPool) copies_.Remove(unit, pool);
}

void PageBooks::Update(Unit unit) {
  const UnitState& state = units_[unit];
  // An empty slot ceases to exist. An empty page stays mapped until its memory is needed.
  if (IsSlot(unit) && state.life == PageState::kClean && state.live == 0 && !state.InUse())
    Apply(unit, PageEvent::kRelease);
  queues_.Update(unit, state, plan_);
  CountIn(unit);
  if (queues_.Contains(MoveQueues::Queue::kComes, unit)) {
    deadlines_.Set(unit, state.demanded ? kNoPosition : plan_.NextNeed(unit), state.pool,
                   limits_.pools[state.pool].InOf(state.bytes));
  } else {
    deadlines_.Clear(unit);
  }
}

void PageBooks::CountIn(Unit unit) {
  const UnitState& state = units_[unit];
  const Bytes memory = WeightOf(unit);
  totals_.SetOccupied(unit, state.slots_per_page, state.live > 0 || state.InUse());
  totals_.Set(unit, Sum::kInUse, memory, state.InUse());
  totals_.Set(unit, Sum::kReady, memory, queues_.Contains(MoveQueues::Queue::kIdleClean, unit));
  totals_.Set(unit, Sum::kAwaited, memory, state.demanded && state.life == PageState::kAway);
}

bool PageBooks::Pin(Unit unit) {
  UnitState& state = units_[unit];
  ++state.pins;
  state.forced = false;
  state.contested = false;
  state.last_use = ++uses_;
  if (!state.IsResident()) state.demanded = true;
  Update(unit);
  return state.demanded;
}

void PageBooks::Unpin(Unit unit) {
  RAVEN_CHECK(units_[unit].pins > 0);
  --units_[unit].pins;
  ++units_[unit].tickets;
}

void PageBooks::Reach(Unit unit) {
  RAVEN_CHECK(units_[unit].tickets > 0);
  --units_[unit].tickets;
  if (!units_[unit].InUse()) units_[unit].demanded = false;
  Update(unit);
}

decide::PageCall PageBooks::CallIn(const UnitSpan& span) const {
  Bytes own;
  Bytes in_use = totals_[Sum::kInUse];
  for (uint32_t i = 0; i < span.count; ++i) {
    const Bytes memory = WeightOf(span[i]);
    own += memory;
    if (!units_[span[i]].InUse()) in_use += memory;
  }
  const auto pages = [page = limits_.page.count()](Bytes memory) {
    return static_cast<uint32_t>((memory.count() + page - 1) / page);
  };
  return {.own = pages(own), .in_use = pages(in_use), .may_hold = limits_.pages};
}

decide::PageCreate PageBooks::CreateIn(const UnitSpan& span) const {
  decide::PageCreate create{.occupied = totals_.occupied().pages(),
                            .classes = totals_.occupied().classes(),
                            .places = limits_.pages + copies().PagesMost()};
  for (uint32_t i = 0; i < span.count; ++i) create.occupied += totals_.IsOccupied(span[i]) ? 0 : 1;
  return create;
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

void PageBooks::RemoveTensor(Unit unit, Bytes bytes) {
  UnitState& state = units_[unit];
  RAVEN_CHECK(state.live > 0);
  state.contested = false;
  if (state.live == 1) {
    state.forced = false;
    Apply(unit, PageEvent::kEmpty);
  }
  --state.live;
  state.bytes -= bytes;
  Update(unit);
}

bool PageBooks::CanMoveCopy(const UnitSpan& pages, const UnitSpan& slot, Bytes bytes) const {
  const auto is_away = [this](Unit unit) {
    return units_[unit].life == PageState::kAway && !units_[unit].InUse();
  };
  const plan::PoolNumber pool = units_[pages.first].pool;
  for (uint32_t i = 0; i < pages.count; ++i) {
    if (!is_away(pages[i]) || units_[pages[i]].pool != pool) return false;
  }
  if (slot.first < units_.size() && !is_away(slot.first)) return false;
  return copies().HasRoom(pool, bytes) && decide::HasPlace(CreateIn(slot));
}

void PageBooks::AddAwayTensor(Unit slot, plan::PoolNumber pool, Bytes bytes) {
  RAVEN_CHECK(units_[slot].live == 0);
  units_[slot].live = 1;
  units_[slot].bytes = bytes;
  ReserveCopy(slot, pool);
  Apply(slot, PageEvent::kCopyGiven);
  Update(slot);
}

void PageBooks::EndUses() {
  for (Unit unit = 0; unit < units_.size(); ++unit) {
    UnitState& state = units_[unit];
    state.pins = state.tickets = 0;
    state.demanded = state.contested = false;
    Update(unit);
  }
}

std::vector<UnitSnapshot> PageBooks::Snapshot() const {
  std::vector<UnitSnapshot> snapshot;
  snapshot.reserve(units_.size());
  for (const UnitState& unit : units_) {
    const bool dirty = unit.IsDirty() || IsBeingCopiedOut(unit.life);
    snapshot.push_back({.pins = unit.pins,
                        .live = unit.live,
                        .held = unit.life != PageState::kAway || unit.InUse(),
                        .dirty = dirty && unit.live > 0,
                        .pool = unit.pool,
                        .slots_per_page = unit.slots_per_page});
  }
  return snapshot;
}

void PageBooks::SetPlan(ResidencyPlan plan) {
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

void PageBooks::MoveTo(Position position) {
  passed_.clear();
  plan_.MoveTo(position, &passed_);
  for (const Unit unit : passed_) Update(unit);
}

void PageBooks::Announce(Unit unit, Position need) {
  plan_.Announce(unit, need);
  Update(unit);
}

void PageBooks::SetShare(uint32_t pages) {
  const Bytes change =
      limits_.page * (std::max(pages, limits_.pages) - std::min(pages, limits_.pages));
  if (pages > limits_.pages) plan_.Release(change, kNoPosition);
  if (pages < limits_.pages) plan_.Take(change, kNoPosition);
  limits_.pages = pages;
}

void PageBooks::AddPage() {
  if (expected_ > 0) --expected_;
  memory_.Add();
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
    copies_.BeginComing(unit, units_[unit].pool, WeightOf(unit));
    plan_.Take(WeightOf(unit), plan_.PlannedNeed(unit));
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
  if (units_[unit].live == 0) {
    Apply(unit, PageEvent::kArrivedEmpty);
  } else if (ok) {
    Apply(unit, PageEvent::kArrived);
  } else {
    copies_.EndComing(unit);
    plan_.Release(WeightOf(unit), plan_.PlannedNeed(unit));
    Apply(unit, PageEvent::kNotArrived);
  }
  Update(unit);
}

void PageBooks::StartOut(Unit unit, plan::PoolNumber pool) {
  RAVEN_CHECK(!units_[unit].InUse());
  totals_.SetLeaving(unit, queues_.Contains(MoveQueues::Queue::kLeaves, unit));
  ReserveCopy(unit, pool);
  Apply(unit, PageEvent::kCopyOut);
  Update(unit);
}

void PageBooks::FinishOut(Unit unit, bool ok) {
  totals_.SetLeaving(unit, false);
  Apply(unit, ok ? PageEvent::kCopied : PageEvent::kNotCopied);
  Update(unit);
}

void PageBooks::Drop(Unit unit) {
  UnitState& state = units_[unit];
  RAVEN_CHECK(!state.InUse());
  RAVEN_CHECK(state.live > 0);
  const Position leaves = plan_.LeavesAt(unit);
  const bool planned = leaves != kNoPosition && !state.forced;
  plan_.Release(WeightOf(unit), planned ? leaves : plan_.PlannedNeed(unit));
  if (planned) plan_.ClearLeave(unit);
  state.forced = false;
  Apply(unit, PageEvent::kRelease);
  Update(unit);
}

void PageBooks::Keep(Unit unit) {
  units_[unit].forced = false;
  plan_.ClearLeave(unit);
  Update(unit);
}

std::optional<Unit> PageBooks::FindCopyToDrop(plan::PoolNumber pool) const {
  std::optional<Unit> found;
  for (const Unit unit : copies_.Redundant(pool)) {
    if (units_[unit].InUse()) return unit;
    if (!found || plan_.NextNeed(unit) < plan_.NextNeed(*found)) found = unit;
  }
  return found;
}

void PageBooks::DropCopy(Unit unit) {
  RAVEN_CHECK(IsRedundant(unit));
  Apply(unit, PageEvent::kDropCopy);
  Update(unit);
}

std::vector<PageMemory::SlotMove> PageBooks::Compact(const std::vector<Unit>& slots) {
  for (const Unit slot : slots) compacted_ += WeightOf(slot);
  return memory_.Empty(slots, units_[slots.front()].slots_per_page);
}

void PageBooks::TakeArrivals(std::vector<Arrival>* arrivals) {
  arrivals->insert(arrivals->end(), arrivals_.begin(), arrivals_.end());
  arrivals_.clear();
}

void PageBooks::Check() const {
  uint32_t pages = memory_.supply().total() + memory_.slot_pages().pages();
  Bytes awaited;
  for (Unit unit = 0; unit < units_.size(); ++unit) {
    const UnitState& state = units_[unit];
    if (!IsSlot(unit)) pages += state.life != PageState::kAway ? 1 : 0;
    RAVEN_CHECK(memory_.slot_pages().Contains(unit) ==
                (IsSlot(unit) && state.life != PageState::kAway));
    RAVEN_CHECK(state.live > 0 || state.bytes == Bytes{});
    RAVEN_CHECK(state.live > 0 || state.life != PageState::kDirty);
    if (state.demanded && state.life == PageState::kAway) awaited += WeightOf(unit);
  }
  RAVEN_CHECK(pages == memory_.pages());
  RAVEN_CHECK(awaited == totals_[Sum::kAwaited]);
  copies_.Check(units_);
}

}  // namespace ravenstore::core
