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
std::optional<Next> FirstComing(const MoveView& view) {
  std::optional<Next> first;
  for (PoolNumber pool = 0; pool < view.copies.size(); ++pool) {
    const auto next = view.queues.First(Queue::kComes, pool);
    if (!next || (first && first->need <= next->need)) continue;
    if (next->need == MoveQueues::kWaitedFor || view.copies.coming(pool) < view.coming_most)
      first = next;
  }
  return first;
}

bool MayCome(const MoveView& view, const Next& next) {
  return next.need == MoveQueues::kWaitedFor || Fits(view, next);
}

// The first pool with room; kNoPool: there is none.
PoolNumber NearestPool(const MoveView& view, Bytes bytes) {
  for (PoolNumber pool = 0; pool < view.copies.size(); ++pool) {
    if (view.copies.CanCopyOut(pool, bytes)) return pool;
  }
  return kNoPool;
}

// Where the copy of a unit goes that leaves for a pool: the nearest pool with room takes those for
// which their pool has none. kNoPool: none has.
PoolNumber TargetOf(const MoveView& view, Unit unit, PoolNumber planned) {
  const Bytes bytes = view.units[unit].bytes;
  if (planned != kNoPool && view.copies.CanCopyOut(planned, bytes)) return planned;
  return NearestPool(view, bytes);
}

// Of the units that leave, those whose copies go to the pool.
std::optional<Next> FirstLeaving(const MoveView& view, PoolNumber pool) {
  std::optional<Next> first;
  const auto add = [&](PoolNumber planned) {
    const auto next = view.queues.First(
        Queue::kLeaves, planned, [&](Unit unit) { return TargetOf(view, unit, planned) == pool; });
    if (next && (!first || next->need < first->need)) first = next;
  };
  add(pool);
  // A nearer pool takes them all.
  for (PoolNumber nearer = 0; nearer < pool; ++nearer) {
    if (view.copies.CanCopyOut(nearer, view.limits.page)) return first;
  }
  add(kNoPool);
  for (PoolNumber other = 0; other < view.copies.size(); ++other) {
    if (other != pool && !view.copies.CanCopyOut(other, view.limits.page)) add(other);
  }
  return first;
}

bool CanLeave(const MoveView& view, Unit unit) {
  return NearestPool(view, view.units[unit].bytes) != kNoPool;
}

// Of the idle dirty units for which a pool has room.
std::optional<Next> FirstDirty(const MoveView& view) {
  return view.queues.First(Queue::kIdleDirty, kNoPool,
                           [&view](Unit unit) { return CanLeave(view, unit); });
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
  if (const auto next = FirstLeaving(view, pool)) return next->unit;
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
  const auto comes = FirstComing(view);
  const auto born = view.queues.First(Queue::kBorn);
  const bool may_come = comes && MayCome(view, *comes);
  const auto is_waited_for = [](const auto& next) {
    return next && next->need == MoveQueues::kWaitedFor;
  };
  if (may_come && (!born || comes->need <= born->need)) {
    if (const auto choice = FindMemory(view, *comes)) return choice;
  }
  // While a call waits for memory nothing is mapped ahead: it would leave again for that call.
  if (is_waited_for(comes) && !is_waited_for(born)) return std::nullopt;
  if (born) {
    if (const auto choice = FindMemory(view, *born)) return choice;
  }
  if (is_waited_for(born)) return std::nullopt;
  if (may_come && born && born->need < comes->need) return FindMemory(view, *comes);
  return std::nullopt;
}

std::optional<Position> FirstLack(const MoveView& view) {
  std::optional<Position> lack;
  const auto comes = FirstComing(view);
  const auto born = view.queues.First(Queue::kBorn);
  if (comes && MayCome(view, *comes) && !FindMemory(view, *comes)) lack = comes->need;
  if (born && !FindMemory(view, *born)) lack = std::min(lack.value_or(born->need), born->need);
  return lack;
}

std::optional<Position> LastSpare(const MoveView& view) {
  if (view.supply.Find(false)) {
    const auto comes = FirstComing(view);
    const auto born = view.queues.First(Queue::kBorn);
    const Position own = std::min(born ? born->need : kNoPosition,
                                  comes && MayCome(view, *comes) ? comes->need : kNoPosition);
    if (own == kNoPosition) return own;
  }
  const auto dead = view.queues.First(Queue::kDead);
  return dead ? std::optional(dead->need) : std::nullopt;
}

std::optional<Unit> NextExchange(const MoveView& view) {
  const auto comes = FirstComing(view);
  if (!comes || MayCome(view, *comes)) return std::nullopt;
  if (!view.plan.empty() && !view.deadlines.IsLate(view.plan)) return std::nullopt;
  // Not for a unit of lower priority.
  const EvictionRank least{LeavingClass(view.units[comes->unit].priority), comes->need};
  const auto may_leave = [&least](const Next& idle) {
    return idle.leaving_class >= least.leaving_class && idle.need > least.need;
  };
  const auto clean = view.queues.First(Queue::kIdleClean);
  if (clean && may_leave(*clean)) return clean->unit;
  const auto dirty = view.queues.First(Queue::kIdleDirty);
  const bool link_is_free = view.queues.IsEmpty(Queue::kLeaves) && view.leaving < kForcedMost;
  if (link_is_free && dirty && CanLeave(view, dirty->unit) && may_leave(*dirty)) return dirty->unit;
  return std::nullopt;
}

size_t LeavingNow(const MoveView& view) {
  for (PoolNumber pool = 0; pool < view.copies.size(); ++pool) {
    if (FirstLeaving(view, pool)) return view.queues.size(Queue::kLeaves);
  }
  return 0;
}

std::optional<Bytes> LackedCopyRoom(const MoveView& view) {
  if (FirstDirty(view) || LeavingNow(view) > 0) return std::nullopt;
  auto first = view.queues.First(Queue::kLeaves);
  if (!first) first = view.queues.First(Queue::kIdleDirty);
  if (!first) return std::nullopt;
  return view.units[first->unit].bytes;
}

std::optional<Unit> NextEmergency(const MoveView& view) {
  const auto clean = view.queues.First(Queue::kIdleClean);
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
