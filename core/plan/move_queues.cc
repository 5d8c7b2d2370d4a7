#include "core/plan/move_queues.h"

namespace ravenstore::core::plan {

std::pair<MoveQueues::Queue, Position> MoveQueues::QueueOf(Unit unit, const UnitState& state,
                                                           const ResidencyPlan& plan) {
  const Position need = state.demanded ? kWaitedFor : plan.NextNeed(unit);
  if (state.life == PageState::kQueued) return {Queue::kArrives, need};
  if (state.life == PageState::kAway) {
    if (need == kNoPosition) return {Queue::kNone, need};
    if (state.live > 0) return {Queue::kComes, need};
    // A slot is found when its tensor is created; only pages are mapped before.
    return {!IsSlot(unit) || state.demanded ? Queue::kBorn : Queue::kNone, need};
  }
  if (!state.IsFree()) return {Queue::kNone, need};
  if (state.live == 0) return {Queue::kDead, need};
  const Position leaves = state.forced ? kWaitedFor : plan.LeavesAt(unit);
  if (leaves == kNoPosition) return {Queue::kNone, leaves};
  return {state.IsDirty() ? Queue::kLeaves : Queue::kDrops, leaves};
}

void MoveQueues::Update(Unit unit, const UnitState& state, const ResidencyPlan& plan) {
  if (unit >= work_.size()) {
    work_.resize(unit + 1);
    idle_.resize(unit + 1);
  }
  const auto [queue, need] = QueueOf(unit, state, plan);
  const auto recency = -static_cast<int64_t>(state.last_use);
  Put(&work_, unit, queue, need, LastFirst(queue) ? unit : -static_cast<int64_t>(unit));
  const bool stays = state.IsIdle() && queue == Queue::kNone;
  const Queue idle = !stays            ? Queue::kNone
                     : state.IsDirty() ? Queue::kIdleDirty
                                       : Queue::kIdleClean;
  Put(&idle_, unit, idle, plan.NextNeed(unit), recency);
}

void MoveQueues::Put(std::vector<Entry>* entries, Unit unit, Queue queue, Position need,
                     int64_t second) {
  Entry& entry = (*entries)[unit];
  const int64_t first = LastFirst(queue) ? need : -static_cast<int64_t>(need);
  const Rank rank(first, second);
  if (entry.queue == queue && entry.rank == rank) return;
  const Traits traits{entries};
  if (entry.queue != Queue::kNone) heaps_[static_cast<size_t>(entry.queue)].Erase(unit, traits);
  entry.queue = queue;
  entry.need = need;
  entry.rank = rank;
  if (queue != Queue::kNone) heaps_[static_cast<size_t>(queue)].Insert(unit, traits);
}

std::optional<MoveQueues::Next> MoveQueues::First(Queue queue) const {
  const IndexedHeap& heap = heaps_[static_cast<size_t>(queue)];
  if (heap.empty()) return std::nullopt;
  const Unit unit = heap[0];
  const bool idle = queue == Queue::kIdleClean || queue == Queue::kIdleDirty;
  return Next{unit, (idle ? idle_ : work_)[unit].need};
}

bool MoveQueues::Contains(Queue queue, Unit unit) const {
  return unit < work_.size() && (work_[unit].queue == queue || idle_[unit].queue == queue);
}

}  // namespace ravenstore::core::plan
