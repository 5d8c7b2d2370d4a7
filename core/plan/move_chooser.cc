#include "core/plan/move_chooser.h"

#include <algorithm>

#include "core/tuned.h"

namespace ravenstore::core::plan {

namespace {

using Queue = MoveQueues::Queue;
using Next = MoveQueues::Next;

Bytes WeightOf(const MoveView& view, Unit unit) {
  return view.limits.WeightOf(view.units[unit].slots_per_page);
}

// Without a copy or an eviction.
Bytes FreeBytes(const MoveView& view) {
  const auto dead = static_cast<uint32_t>(view.queues.size(Queue::kDead));
  const uint32_t free = view.supply.total() + view.slot_pages.SparePages() + dead;
  return view.limits.page * (free > view.surplus ? free - view.surplus : 0);
}

bool Fits(const MoveView& view, const Next& next) {
  const Bytes weight = WeightOf(view, next.unit);
  if (!view.plan.empty()) return view.plan.Fits(weight, next.need);
  Bytes free = FreeBytes(view);
  const uint32_t slots = view.units[next.unit].slots_per_page;
  if (slots > 1 && view.slot_pages.HasRoom(slots)) free += weight;
  return free >= weight + view.growth.Before(next.need);
}

// Of the units that a call waits for, or whose pool may send more ahead of need.
std::optional<Next> FirstReturn(const MoveView& view) {
  std::optional<Next> first;
  for (PoolNumber pool = 0; pool < view.copies.size(); ++pool) {
    const auto next = view.queues.First(Queue::kReturns, pool);
    if (!next || (first && first->need <= next->need)) continue;
    if (next->need == MoveQueues::kWaitedFor || view.copies.coming(pool) < view.coming_most)
      first = next;
  }
  return first;
}

// While an exchange uses the room that is kept for it, free pages are for units that come back.
std::optional<Next> FirstCreated(const MoveView& view) {
  return view.copies.MayCreate() ? view.queues.First(Queue::kCreated) : std::nullopt;
}

bool MayReturn(const MoveView& view, const Next& next) {
  return next.need == MoveQueues::kWaitedFor || Fits(view, next);
}

// Where the copy of a unit goes that leaves for a pool: the nearest pool with room takes those for
// which their pool has none. Room that is kept for exchanges is the last. kNoPool: none has room.
PoolNumber TargetOf(const MoveView& view, Bytes bytes, PoolNumber planned) {
  using May = bool (CopyPools::*)(PoolNumber, Bytes) const;
  for (const May may : {&CopyPools::CanLeave, &CopyPools::CanCopyOut}) {
    if (planned != kNoPool && (view.copies.*may)(planned, bytes)) return planned;
    for (PoolNumber pool = 0; pool < view.copies.size(); ++pool) {
      if ((view.copies.*may)(pool, bytes)) return pool;
    }
  }
  return kNoPool;
}

PoolNumber NearestPool(const MoveView& view, Bytes bytes) {
  return TargetOf(view, bytes, kNoPool);
}

// Of the units that leave, one for whose target `may(pool)` is true.
template <typename May>
std::optional<Next> FirstLeaving(const MoveView& view, May may) {
  return view.queues.FirstOfAll(Queue::kLeaves, [&](Unit unit) {
    return may(TargetOf(view, view.units[unit].bytes, view.plan.PoolOf(unit)));
  });
}

// Of the idle dirty units for which a pool has room.
std::optional<Next> FirstDirty(const MoveView& view) {
  return view.queues.First(Queue::kIdleDirty, kNoPool, [&view](Unit unit) {
    return view.copies.CanLeave(view.units[unit].bytes);
  });
}

// Of the idle clean units that may leave.
std::optional<Next> FirstClean(const MoveView& view) {
  return view.queues.FirstOfAll(Queue::kIdleClean, [&view](Unit unit) {
    const UnitState& state = view.units[unit];
    return state.pool == kNoPool || view.copies.CanDrop(state.pool, state.bytes);
  });
}

bool Waits(const std::optional<Next>& next) {
  return next && next->need == MoveQueues::kWaitedFor;
}

std::optional<MapChoice> FindMemory(const MoveView& view, const Next& next) {
  using From = MapChoice::From;
  const uint32_t slots_per_page = view.units[next.unit].slots_per_page;
  const bool is_slot = IsSlot(next.unit);
  if (is_slot && view.slot_pages.HasRoom(slots_per_page))
    return MapChoice{.unit = next.unit, .from = From::kSlotRoom};
  if (const auto source = view.supply.Find(is_slot))
    return MapChoice{.unit = next.unit, .from = From::kSupply, .source = *source};
  const auto is_idle = [&](Unit slot) { return view.units[slot].IsIdle(); };
  if (!view.slot_pages.FindSparse(is_idle).empty())
    return MapChoice{.unit = next.unit, .from = From::kSparse};
  const auto dead = view.queues.First(Queue::kDead);
  // A tensor will be created on the dead page before this unit is needed: it keeps its memory.
  if (!dead || (next.need != MoveQueues::kWaitedFor && dead->need <= next.need))
    return std::nullopt;
  return MapChoice{.unit = next.unit, .from = From::kDead, .dead = dead->unit};
}

}  // namespace

Bytes ExpectedGrowth::Before(Position need) const {
  if (need >= until) return bytes;
  if (need <= from) return {};
  const double share = static_cast<double>(need - from) / static_cast<double>(until - from);
  return Bytes(static_cast<uint64_t>(share * static_cast<double>(bytes.count())));
}

std::optional<Unit> NextOut(const MoveView& view, PoolNumber pool) {
  const auto leaves = FirstLeaving(view, [pool](PoolNumber target) { return target == pool; });
  if (leaves) return leaves->unit;
  // Without a plan the unit that is needed last is copied ahead; it stays until its memory is
  // needed.
  if (!view.plan.empty()) return std::nullopt;
  const auto dirty = view.queues.First(Queue::kIdleDirty);
  if (!dirty || dirty->need < view.growth.until) return std::nullopt;
  const Bytes bytes = view.units[dirty->unit].bytes;
  if (pool != NearestPool(view, bytes) || !view.copies.CanCopyAhead(pool, bytes))
    return std::nullopt;
  if (FreeBytes(view) + view.ready >= view.growth.bytes) return std::nullopt;
  return dirty->unit;
}

std::optional<Unit> NextIn(const MoveView& view, PoolNumber pool) {
  const auto next = view.queues.First(Queue::kArrives, pool);
  return next ? std::optional(next->unit) : std::nullopt;
}

std::optional<MapChoice> NextMap(const MoveView& view) {
  const auto returns = FirstReturn(view);
  const auto created = FirstCreated(view);
  const bool may_return = returns && MayReturn(view, *returns);
  if (may_return && (!created || returns->need <= created->need)) {
    if (const auto choice = FindMemory(view, *returns)) return choice;
  }
  // While a call waits for memory nothing is mapped ahead: it would leave again for that call.
  if (Waits(returns) && !Waits(created)) return std::nullopt;
  if (created) {
    if (const auto choice = FindMemory(view, *created)) return choice;
  }
  if (Waits(created)) return std::nullopt;
  if (may_return && created && created->need < returns->need) return FindMemory(view, *returns);
  return std::nullopt;
}

std::optional<Position> FirstLack(const MoveView& view) {
  std::optional<Position> lack;
  const auto returns = FirstReturn(view);
  const auto created = FirstCreated(view);
  if (returns && MayReturn(view, *returns) && !FindMemory(view, *returns)) lack = returns->need;
  if (created && !FindMemory(view, *created))
    lack = std::min(lack.value_or(created->need), created->need);
  return lack;
}

std::optional<Position> LastSpare(const MoveView& view) {
  if (view.supply.Find(false)) {
    const auto returns = FirstReturn(view);
    const auto created = FirstCreated(view);
    const Position own =
        std::min(created ? created->need : kNoPosition,
                 returns && MayReturn(view, *returns) ? returns->need : kNoPosition);
    if (own == kNoPosition) return own;
  }
  const auto dead = view.queues.First(Queue::kDead);
  return dead ? std::optional(dead->need) : std::nullopt;
}

std::optional<Unit> NextExchange(const MoveView& view) {
  const auto returns = FirstReturn(view);
  if (!returns || MayReturn(view, *returns)) return std::nullopt;
  if (!view.plan.empty() && !view.deadlines.IsLate(view.plan)) return std::nullopt;
  // Not for a unit of lower priority.
  const EvictionRank least{LeavingClass(view.units[returns->unit].priority), returns->need};
  const auto may_leave = [&least](const Next& idle) {
    return idle.leaving_class >= least.leaving_class && idle.need > least.need;
  };
  const auto clean = view.queues.First(Queue::kIdleClean);
  if (clean && may_leave(*clean)) return clean->unit;
  const auto dirty = view.queues.First(Queue::kIdleDirty);
  const bool link_is_free = view.queues.IsEmpty(Queue::kLeaves) && view.leaving < kForcedMost;
  if (link_is_free && dirty && may_leave(*dirty) &&
      NearestPool(view, view.units[dirty->unit].bytes) != kNoPool)
    return dirty->unit;
  return std::nullopt;
}

size_t LeavingNow(const MoveView& view) {
  const auto any = FirstLeaving(view, [](PoolNumber target) { return target != kNoPool; });
  return any ? view.queues.size(Queue::kLeaves) : 0;
}

std::optional<Bytes> LackedCopyRoom(const MoveView& view) {
  if (LeavingNow(view) > 0) return std::nullopt;
  auto first = view.queues.First(Queue::kLeaves);
  if (!first && FirstDirty(view)) return std::nullopt;
  if (!first) first = view.queues.First(Queue::kIdleDirty);
  if (!first && !FirstClean(view)) first = view.queues.First(Queue::kIdleClean);
  if (!first) return std::nullopt;
  return view.units[first->unit].bytes;
}

bool AwaitsReturn(const MoveView& view) {
  return Waits(FirstReturn(view));
}

bool AwaitsCreation(const MoveView& view) {
  return Waits(view.queues.First(Queue::kCreated));
}

std::optional<Unit> NextReturn(const MoveView& view, PoolNumber pool) {
  const bool has_page = view.supply.Find(false) || !view.queues.IsEmpty(Queue::kDead);
  const bool has_away = view.copies.used(pool) > view.copies.redundant(pool);
  if (!has_page || !has_away || view.surplus > 0 || AwaitsReturn(view)) return std::nullopt;
  std::optional<Unit> last;
  for (Unit unit = 0; unit < view.units.size(); ++unit) {
    const UnitState& state = view.units[unit];
    if (state.life != PageState::kAway || state.pool != pool || state.in_place > 0) continue;
    if (!last || state.last_use > view.units[*last].last_use) last = unit;
  }
  return last;
}

std::optional<Unit> NextEmergency(const MoveView& view) {
  const auto clean = FirstClean(view);
  const auto dirty = FirstDirty(view);
  if (!clean) return dirty ? std::optional(dirty->unit) : std::nullopt;
  if (!dirty || dirty->rank() <= clean->rank()) return clean->unit;
  if (dirty->leaving_class != clean->leaving_class) return dirty->unit;
  // A plan has counted the copy. Without one a unit that is needed at least half as late is better:
  // a copy that is waited for costs more than an earlier way back.
  const Position from = view.growth.from;
  if (view.plan.empty() && (dirty->need - from) / 2 <= clean->need - from) return clean->unit;
  return dirty->unit;
}

}  // namespace ravenstore::core::plan
