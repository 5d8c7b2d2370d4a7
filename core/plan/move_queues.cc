#include "core/plan/move_queues.h"

#include <algorithm>

namespace ravenstore::core::plan {

MoveQueues::MoveQueues(PoolNumber pools) : pools_(pools) {
  for (auto& of_pools : classes_) of_pools.resize(pools + size_t{1});
}

std::pair<MoveQueues::Queue, Position> MoveQueues::QueueOf(Unit unit, const UnitState& state,
                                                           const ResidencyPlan& plan) {
  const Position need = state.demanded ? kWaitedFor : plan.NextNeed(unit);
  if (state.life == PageState::kQueued) return {Queue::kArrives, need};
  if (state.life == PageState::kAway) {
    if (need == kNoPosition || state.in_place > 0) return {Queue::kNone, need};
    if (state.live > 0) return {Queue::kReturns, need};
    // A slot is found when its tensor is created; only pages are mapped before.
    return {!IsSlot(unit) || state.demanded ? Queue::kCreated : Queue::kNone, need};
  }
  if (!state.IsFree()) return {Queue::kNone, need};
  if (state.live == 0) return {Queue::kDead, need};
  const Position leaves = state.forced ? kWaitedFor : plan.LeavesAt(unit);
  if (leaves == kNoPosition) return {Queue::kNone, leaves};
  return {state.IsDirty() ? Queue::kLeaves : Queue::kDrops, leaves};
}

PoolNumber MoveQueues::PoolOf(Unit unit, Queue queue, const UnitState& state,
                              const ResidencyPlan& plan) {
  switch (queue) {
    case Queue::kReturns:
    case Queue::kArrives:
    case Queue::kIdleClean: return state.pool;
    case Queue::kLeaves: return plan.PoolOf(unit);
    default: return kNoPool;
  }
}

void MoveQueues::Update(Unit unit, const UnitState& state, const ResidencyPlan& plan) {
  if (unit >= work_.size()) {
    work_.resize(unit + 1);
    idle_.resize(unit + 1);
  }
  const auto [queue, need] = QueueOf(unit, state, plan);
  const auto recency = -static_cast<int64_t>(state.last_use);
  const auto bytes_in = [&state](Queue in) { return HasSizeClasses(in) ? state.bytes : Bytes{}; };
  Put(&work_, unit,
      {.queue = queue,
       .pool = PoolOf(unit, queue, state, plan),
       .need = need,
       .bytes = bytes_in(queue)},
      0, LastFirst(queue) ? unit : -static_cast<int64_t>(unit));
  const bool stays = state.IsIdle() && queue == Queue::kNone;
  const Queue idle = !stays            ? Queue::kNone
                     : state.IsDirty() ? Queue::kIdleDirty
                                       : Queue::kIdleClean;
  const Entry entry{.queue = idle,
                    .pool = PoolOf(unit, idle, state, plan),
                    .leaving_class = LeavingClass(state.priority),
                    .need = plan.NextNeed(unit),
                    .bytes = bytes_in(idle)};
  const bool by_worth = plan.empty() && entry.need == kNoPosition;
  Put(&idle_, unit, entry, by_worth ? -state.worth : 0, recency);
}

void MoveQueues::Put(std::vector<Entry>* entries, Unit unit, const Entry& next, double least_worth,
                     int64_t order) {
  Entry& entry = (*entries)[unit];
  const int64_t first = LastFirst(next.queue) ? next.need : -static_cast<int64_t>(next.need);
  const Rank rank{next.leaving_class, first, least_worth, order};
  const bool stays =
      entry.queue == next.queue && entry.pool == next.pool && entry.bytes == next.bytes;
  if (stays && entry.rank == rank) return;
  Erase(entries, unit, !stays);
  const uint32_t size_position = entry.size_position;
  entry = next;
  entry.rank = rank;
  entry.size_position = size_position;
  Insert(entries, unit, !stays);
}

void MoveQueues::Insert(std::vector<Entry>* entries, Unit unit, bool with_size) {
  const Entry& entry = (*entries)[unit];
  if (entry.queue == Queue::kNone) return;
  SizeClasses& classes = ClassesOf(entry.queue, entry.pool);
  const size_t number = ClassOf(entry.bytes);
  if (number >= classes.by_class.size()) classes.by_class.resize(number + 1);
  SizeClass& units = classes.by_class[number];
  units.by_rank.Insert(unit, RankTraits{entries});
  if (with_size && HasSizeClasses(entry.queue)) units.by_size.Insert(unit, SizeTraits{entries});
  classes.filled |= uint64_t{1} << number;
}

void MoveQueues::Erase(std::vector<Entry>* entries, Unit unit, bool with_size) {
  const Entry& entry = (*entries)[unit];
  if (entry.queue == Queue::kNone) return;
  SizeClasses& classes = ClassesOf(entry.queue, entry.pool);
  const size_t number = ClassOf(entry.bytes);
  SizeClass& units = classes.by_class[number];
  units.by_rank.Erase(unit, RankTraits{entries});
  if (with_size && HasSizeClasses(entry.queue)) units.by_size.Erase(unit, SizeTraits{entries});
  if (units.by_rank.empty()) classes.filled &= ~(uint64_t{1} << number);
}

std::optional<MoveQueues::Next> MoveQueues::First(Queue queue, PoolNumber pool) const {
  return First(queue, pool, [](Unit) { return true; });
}

std::optional<MoveQueues::Next> MoveQueues::First(Queue queue) const {
  return FirstOfAll(queue, [](Unit) { return true; });
}

bool MoveQueues::IsEmpty(Queue queue) const {
  const auto& of_pools = classes_[static_cast<size_t>(queue)];
  return std::all_of(of_pools.begin(), of_pools.end(),
                     [](const SizeClasses& classes) { return classes.filled == 0; });
}

size_t MoveQueues::size(Queue queue) const {
  size_t all = 0;
  for (const SizeClasses& classes : classes_[static_cast<size_t>(queue)]) {
    for (const SizeClass& units : classes.by_class) all += units.by_rank.size();
  }
  return all;
}

bool MoveQueues::Contains(Queue queue, Unit unit) const {
  return unit < work_.size() && (work_[unit].queue == queue || idle_[unit].queue == queue);
}

}  // namespace ravenstore::core::plan
