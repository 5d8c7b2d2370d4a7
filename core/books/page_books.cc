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

PageBooks::PageBooks(const Options& options)
    : options_(options),
      limits_(options.limits),
      queues_(static_cast<plan::PoolNumber>(limits_.pools.size())),
      deadlines_(static_cast<plan::PoolNumber>(limits_.pools.size())),
      copies_(options_.limits.pools, limits_.page) {
  supply_.Add(limits_.pages);
  pages_ = limits_.pages;
}

plan::MoveView PageBooks::view() const {
  return {.units = units_,
          .queues = queues_,
          .plan = plan_,
          .deadlines = deadlines_,
          .supply = supply_,
          .slot_pages = slot_pages_,
          .limits = limits_,
          .copies = copies_,
          .coming_most = options_.coming_most,
          .leaving = leaving_,
          .expected = expected_,
          .surplus = surplus(),
          .ready = ready_,
          .growth = growth_};
}

PageBooks::Memory PageBooks::MemoryOf(Unit unit) const {
  if (!IsSlot(unit)) return {details_[unit].page, Bytes{}};
  const plan::SlotPlace place = slot_pages_.PlaceOf(unit);
  const Bytes slot = WeightOf(unit).RoundDown(kExtentAlignment);
  return {slot_memory_[place.page], slot * place.index};
}

void PageBooks::Ensure(const UnitSpan& span) {
  if (span.end() > units_.size()) {
    units_.resize(span.end());
    details_.resize(span.end());
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
  if (IsRedundant(unit)) copies_.RemoveRedundant(of.pool, details_[unit].copy);
  of.life = step->next;
  if (step->copy == PageStep::Copy::kFree) FreeCopy(unit);
  if (IsRedundant(unit)) copies_.AddRedundant(of.pool, details_[unit].copy);
  if (step->memory == PageStep::Memory::kRelease) ReleaseMemory(unit);
  if (step->words != PageStep::Words::kPublish) return;
  EndComing(unit);
  arrivals_.push_back({unit, std::exchange(of.demanded, false)});
}

bool PageBooks::IsRedundant(Unit unit) const {
  return units_[unit].life == PageState::kClean && units_[unit].pool != plan::kNoPool;
}

void PageBooks::ReserveCopy(Unit unit, plan::PoolNumber pool) {
  copies_.Add(pool, units_[unit].bytes);
  units_[unit].pool = pool;
  details_[unit].copy = units_[unit].bytes;
}

void PageBooks::FreeCopy(Unit unit) {
  EndComing(unit);
  if (const auto pool = std::exchange(units_[unit].pool, plan::kNoPool); pool != plan::kNoPool)
    copies_.Remove(pool, std::exchange(details_[unit].copy, Bytes{}));
}

void PageBooks::EndComing(Unit unit) {
  if (std::exchange(details_[unit].coming, false))
    copies_.RemoveComing(units_[unit].pool, WeightOf(unit));
}

void PageBooks::Update(Unit unit) {
  const UnitState& state = units_[unit];
  // An empty slot ceases to exist. An empty page stays mapped until its memory is needed.
  if (IsSlot(unit) && state.life == PageState::kClean && state.live == 0 && !state.InUse())
    Apply(unit, PageEvent::kRelease);
  const bool occupied = state.live > 0 || state.InUse();
  if (std::exchange(details_[unit].occupied, occupied) != occupied) {
    if (occupied) {
      occupied_.Add(state.slots_per_page);
    } else {
      occupied_.Remove(state.slots_per_page);
    }
  }
  CountAwaited(unit);
  queues_.Update(unit, state, plan_);
  const bool ready = queues_.Contains(MoveQueues::Queue::kIdleClean, unit);
  if (ready != std::exchange(details_[unit].ready, ready))
    ready_ = ready ? ready_ + WeightOf(unit) : ready_ - WeightOf(unit);
  if (queues_.Contains(MoveQueues::Queue::kComes, unit)) {
    deadlines_.Set(unit, state.demanded ? kNoPosition : plan_.NextNeed(unit), state.pool,
                   limits_.pools[state.pool].InOf(state.bytes));
  } else {
    deadlines_.Clear(unit);
  }
}

void PageBooks::CountAwaited(Unit unit) {
  const bool awaited = units_[unit].demanded && units_[unit].life == PageState::kAway;
  if (awaited == std::exchange(details_[unit].awaited, awaited)) return;
  awaited_ = awaited ? awaited_ + WeightOf(unit) : awaited_ - WeightOf(unit);
}

bool PageBooks::Pin(Unit unit) {
  UnitState& state = units_[unit];
  if (!state.InUse()) in_use_ += WeightOf(unit);
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
  if (!units_[unit].InUse()) {
    in_use_ -= WeightOf(unit);
    units_[unit].demanded = false;
  }
  Update(unit);
}

uint32_t PageBooks::PagesInUse(const UnitSpan& span) const {
  Bytes needed = in_use_;
  for (uint32_t i = 0; i < span.count; ++i)
    if (!units_[span[i]].InUse()) needed += WeightOf(span[i]);
  const uint64_t page = limits_.page.count();
  return static_cast<uint32_t>((needed.count() + page - 1) / page);
}

bool PageBooks::HasRoomFor(const UnitSpan& span) const {
  // Slots of a class that are away leave its pages on the device in part empty.
  uint64_t needed = occupied_.pages() + occupied_.classes() + 1;
  for (uint32_t i = 0; i < span.count; ++i) {
    if (span[i] >= units_.size() || !details_[span[i]].occupied) ++needed;
  }
  return needed <= limits_.pages + copies_.PagesMost();
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
  return copies_.HasRoom(pool, bytes) && HasRoomFor(slot);
}

void PageBooks::AddAwayTensor(Unit slot, plan::PoolNumber pool, Bytes bytes) {
  RAVEN_CHECK(units_[slot].live == 0);
  units_[slot].live = 1;
  units_[slot].bytes = bytes;
  ReserveCopy(slot, pool);
  Apply(slot, PageEvent::kCopyGiven);
  Update(slot);
}

void PageBooks::Modify(Unit unit) {
  Apply(unit, PageEvent::kChange);
  Update(unit);
}

void PageBooks::EndUses() {
  for (Unit unit = 0; unit < units_.size(); ++unit) {
    UnitState& state = units_[unit];
    state.pins = state.tickets = 0;
    state.demanded = state.contested = false;
    Update(unit);
  }
  in_use_ = {};
}

void PageBooks::Contest(Unit unit) {
  units_[unit].contested = true;
  Update(unit);
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
  supply_.Add(1);
  ++pages_;
}

std::optional<PageSupply::Released> PageBooks::ReleasePage() {
  if (!supply_.Find(false)) {
    const auto dead = queues_.First(MoveQueues::Queue::kDead);
    if (!dead) return std::nullopt;
    Apply(dead->unit, PageEvent::kRelease);
    Update(dead->unit);
  }
  --pages_;
  return supply_.Release();
}

PageBooks::Mapping PageBooks::StartMap(const MapChoice& choice) {
  const Unit unit = choice.unit;
  const bool is_slot = IsSlot(unit);
  Mapping mapping;
  if (choice.from == MapChoice::From::kSupply) {
    mapping = {supply_.Take(choice.source), PageSupply::StepsOf(choice.source, is_slot)};
  } else if (choice.from == MapChoice::From::kDead) {
    RAVEN_CHECK(units_[choice.dead].live == 0);
    RAVEN_CHECK(units_[choice.dead].IsFree());
    // A dead page is taken where no other is free: it is then the only stale one.
    Apply(choice.dead, PageEvent::kRelease);
    Update(choice.dead);
    mapping = {supply_.Take(PageSupply::Source::kStale),
               PageSupply::StepsOf(PageSupply::Source::kStale, is_slot)};
  } else {
    RAVEN_CHECK(choice.from == MapChoice::From::kSlotRoom);
    slot_pages_.Join(unit, units_[unit].slots_per_page);
    mapping.page = MemoryOf(unit).page;
  }
  if (!is_slot) {
    details_[unit].page = mapping.page;
  } else if (choice.from != MapChoice::From::kSlotRoom) {
    const uint32_t page = slot_pages_.JoinEmpty(unit, units_[unit].slots_per_page);
    if (page >= slot_memory_.size()) slot_memory_.resize(page + 1);
    slot_memory_[page] = mapping.page;
  }
  Apply(unit, PageEvent::kMap);
  if (units_[unit].live > 0) {
    copies_.AddComing(units_[unit].pool, WeightOf(unit));
    details_[unit].coming = true;
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
    EndComing(unit);
    plan_.Release(WeightOf(unit), plan_.PlannedNeed(unit));
    Apply(unit, PageEvent::kNotArrived);
  }
  Update(unit);
}

void PageBooks::StartOut(Unit unit, plan::PoolNumber pool) {
  RAVEN_CHECK(!units_[unit].InUse());
  details_[unit].leaving = queues_.Contains(MoveQueues::Queue::kLeaves, unit);
  if (details_[unit].leaving) ++leaving_;
  ReserveCopy(unit, pool);
  Apply(unit, PageEvent::kCopyOut);
  Update(unit);
}

void PageBooks::FinishOut(Unit unit, bool ok) {
  if (std::exchange(details_[unit].leaving, false)) --leaving_;
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

void PageBooks::ReleaseMemory(Unit unit) {
  if (!IsSlot(unit)) {
    supply_.AddStale(details_[unit].page);
    return;
  }
  const plan::PhysicalPage page = MemoryOf(unit).page;
  if (slot_pages_.Leave(unit)) supply_.AddEmpty(page);
}

void PageBooks::Force(Unit unit) {
  units_[unit].forced = true;
  Update(unit);
}

void PageBooks::Keep(Unit unit) {
  units_[unit].forced = false;
  plan_.ClearLeave(unit);
  Update(unit);
}

std::optional<Unit> PageBooks::FindCopyToDrop(plan::PoolNumber pool) const {
  std::optional<Unit> found;
  for (Unit unit = 0; unit < units_.size(); ++unit) {
    if (!IsRedundant(unit) || units_[unit].pool != pool) continue;
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

std::vector<PageBooks::SlotMove> PageBooks::Compact(const std::vector<Unit>& slots) {
  const plan::PhysicalPage emptied = MemoryOf(slots.front()).page;
  std::vector<SlotMove> moves;
  for (const Unit slot : slots) moves.push_back({slot, MemoryOf(slot), {}});
  slot_pages_.Empty(slots);
  for (SlotMove& move : moves) {
    move.to = MemoryOf(move.slot);
    compacted_ += WeightOf(move.slot);
  }
  supply_.AddEmpty(emptied);
  return moves;
}

plan::PhysicalPage PageBooks::StartUnmap() {
  return supply_.StartUnmap();
}

void PageBooks::FinishUnmap(plan::PhysicalPage page) {
  supply_.FinishUnmap(page);
}

void PageBooks::TakeArrivals(std::vector<Arrival>* arrivals) {
  arrivals->insert(arrivals->end(), arrivals_.begin(), arrivals_.end());
  arrivals_.clear();
}

void PageBooks::Check() const {
  uint32_t pages = supply_.total() + slot_pages_.pages();
  Bytes awaited;
  std::vector<std::pair<Bytes, Bytes>> copies(copies_.size());  // all, and redundant ones
  for (Unit unit = 0; unit < units_.size(); ++unit) {
    const UnitState& state = units_[unit];
    if (!IsSlot(unit)) pages += state.life != PageState::kAway ? 1 : 0;
    RAVEN_CHECK(slot_pages_.Contains(unit) == (IsSlot(unit) && state.life != PageState::kAway));
    RAVEN_CHECK(state.live > 0 || state.bytes == Bytes{});
    RAVEN_CHECK(state.live > 0 || state.life != PageState::kDirty);
    if (state.demanded && state.life == PageState::kAway) awaited += WeightOf(unit);
    if (state.pool == plan::kNoPool) continue;
    copies[state.pool].first += details_[unit].copy;
    if (IsRedundant(unit)) copies[state.pool].second += details_[unit].copy;
  }
  RAVEN_CHECK(pages == pages_);
  RAVEN_CHECK(awaited == awaited_);
  for (plan::PoolNumber pool = 0; pool < copies_.size(); ++pool) {
    RAVEN_CHECK(copies[pool].first == copies_.used(pool));
    RAVEN_CHECK(copies[pool].second == copies_.redundant(pool));
    RAVEN_CHECK(copies_.used(pool) <= limits_.pools[pool].capacity);
  }
}

}  // namespace ravenstore::core
