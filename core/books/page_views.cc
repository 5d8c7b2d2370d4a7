#include "core/books/page_views.h"

#include "core/check.h"

namespace ravenstore::core {

using plan::IsSlot;
using plan::Unit;
using plan::UnitSnapshot;
using plan::UnitSpan;
using plan::UnitState;
using Sum = UnitTotals::Sum;

namespace {

uint32_t PagesOf(Bytes memory, Bytes page) {
  return static_cast<uint32_t>((memory.count() + page.count() - 1) / page.count());
}

}  // namespace

decide::PageCall CallIn(const PageBooks& books, const UnitSpan& units, bool in_place) {
  Bytes own;
  Bytes in_use = books.totals()[Sum::kInUse];
  for (uint32_t i = 0; i < units.count; ++i) {
    if (in_place && !books[units[i]].IsResident()) continue;
    const Bytes memory = WeightOf(books, units[i]);
    own += memory;
    if (!books[units[i]].InUse()) in_use += memory;
  }
  const plan::PlanLimits& limits = books.view().limits;
  return {.own = PagesOf(own, limits.page),
          .in_use = PagesOf(in_use, limits.page),
          .may_hold = limits.pages};
}

decide::PageCreate CreateIn(const PageBooks& books, const UnitSpan& units) {
  const UnitTotals& totals = books.totals();
  decide::PageCreate create{
      .occupied = totals.occupied().pages(),
      .classes = totals.occupied().classes(),
      .places = books.view().limits.pages + books.copies().pools().PagesMost()};
  for (uint32_t i = 0; i < units.count; ++i) create.occupied += totals.IsOccupied(units[i]) ? 0 : 1;
  return create;
}

uint32_t PagesInUse(const PageBooks& books) {
  return PagesOf(books.totals()[Sum::kInUse], books.view().limits.page);
}

bool IsOnItsWay(const PageBooks& books, const UnitSpan& units) {
  for (uint32_t i = 0; i < units.count; ++i) {
    const PageState life = books[units[i]].life;
    if (life == PageState::kMapping || life == PageState::kArriving) return true;
  }
  return false;
}

Bytes WeightOf(const PageBooks& books, Unit unit) {
  return books.view().limits.WeightOf(books[unit].slots_per_page);
}

PageMemory::Place PlaceOf(const PageBooks& books, Unit unit) {
  return books.memory().Of(unit, books[unit].slots_per_page);
}

bool CanMoveCopy(const PageBooks& books, const UnitSpan& pages, const UnitSpan& slot) {
  const auto is_away = [&books](Unit unit) {
    const UnitState& state = books[unit];
    return state.life == PageState::kAway && !state.InUse() && state.in_place == 0;
  };
  const plan::PoolNumber pool = books[pages.first].pool;
  for (uint32_t i = 0; i < pages.count; ++i) {
    if (!is_away(pages[i]) || books[pages[i]].pool != pool) return false;
  }
  if (slot.first < books.view().units.size() && !is_away(slot.first)) return false;
  return decide::HasPlace(CreateIn(books, slot));
}

bool CanMoveOn(const UnitState& unit) {
  const bool waits = unit.life == PageState::kMapping || unit.life == PageState::kQueued;
  const bool is_away = unit.life == PageState::kAway && unit.in_place == 0;
  return (is_away || waits) && unit.pool != plan::kNoPool;
}

std::optional<Unit> CopyToDrop(const PageBooks& books, plan::PoolNumber pool) {
  const plan::ResidencyPlan& plan = books.view().plan;
  std::optional<Unit> found;
  for (const Unit unit : books.copies().Redundant(pool)) {
    if (books[unit].InUse()) return unit;
    if (!found || plan.NextNeed(unit) < plan.NextNeed(*found)) found = unit;
  }
  return found;
}

std::vector<UnitSnapshot> SnapshotOf(const PageBooks& books) {
  std::vector<UnitSnapshot> snapshot;
  snapshot.reserve(books.view().units.size());
  for (const UnitState& unit : books.view().units) {
    const bool dirty = unit.IsDirty() || IsBeingCopiedOut(unit.life);
    snapshot.push_back({.pins = unit.pins,
                        .live = unit.live,
                        .held = unit.life != PageState::kAway || unit.InUse(),
                        .dirty = dirty && unit.live > 0,
                        .pool = unit.pool,
                        .slots_per_page = unit.slots_per_page,
                        .priority = unit.priority});
  }
  return snapshot;
}

void CheckBooks(const PageBooks& books) {
  const PageMemory& memory = books.memory();
  uint32_t pages = memory.supply().total() + memory.slot_pages().pages();
  Bytes awaited;
  for (Unit unit = 0; unit < books.view().units.size(); ++unit) {
    const UnitState& state = books[unit];
    const bool away = state.life == PageState::kAway;
    if (!IsSlot(unit)) pages += away ? 0 : 1;
    RAVEN_CHECK(memory.slot_pages().Contains(unit) == (IsSlot(unit) && !away));
    RAVEN_CHECK(state.live > 0 || state.bytes == Bytes{});
    RAVEN_CHECK(state.live > 0 || state.life != PageState::kDirty);
    RAVEN_CHECK(state.in_place == 0 || (away && state.live > 0));
    if (state.IsAwaited()) awaited += WeightOf(books, unit);
  }
  RAVEN_CHECK(pages == memory.pages());
  RAVEN_CHECK(awaited == books.totals()[Sum::kAwaited]);
  books.copies().Check(books.view().units);
}

}  // namespace ravenstore::core
