// What is to be done next with a client's units, each kind of work in a queue of its own.
//
// A unit is in at most one queue, by its state and the plan:
//   returns  away, with live bytes that are needed; by need, those that are waited for first
//   created  away and empty, but needed: a tensor will be created there; by need
//   arrives  mapped, and its bytes wait for the link; by need
//   dead     resident, and nothing lives there; the one needed last first
//   drops    leaves in its present gap, and a copy of its bytes exists: it is dropped immediately
//   leaves   leaves in its present gap, and is dirty; by the position where it leaves
// A unit whose copy kernels use in place does not come. Idle units are in one of two further
// queues, clean or dirty, the one of the lowest priority and needed last first (eviction_rank.h).
// Units needed at the same position are ordered by their last use, the least recent first. Without
// a plan, units whose need is unknown are ordered by their worth first (use_worth.h).
//
// Of returns, arrives and clean idle units each pool for copies has a queue, by where the copy is;
// of leaves by where it goes, and one for units that may go to any. Leaving and idle units are also
// apart by the power of two of their bytes: they may have to fit what little room a pool has.
//
// Owns: the queues; neither units nor plan. The caller reports each change of a unit's state or of
// its next need. Units: positions, bytes. Threads: one at a time. Cost: O(log units) a call, and
// O(size classes) to find the first of those queues.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/indexed_heap.h"
#include "core/plan/calls.h"
#include "core/plan/eviction_rank.h"
#include "core/plan/residency_plan.h"
#include "core/plan/unit_state.h"
#include "core/plan/units.h"
#include "core/types.h"

namespace ravenstore::core::plan {

class MoveQueues {
 public:
  enum class Queue : uint8_t {
    kReturns,
    kCreated,
    kArrives,
    kDead,
    kDrops,
    kLeaves,
    kIdleClean,
    kIdleDirty,
    kNone,
  };
  // The need of a unit that a call waits for: before all positions.
  static constexpr Position kWaitedFor{-1};
  struct Next {
    Unit unit;
    Position need;                                        // of kLeaves: where it leaves
    int leaving_class = LeavingClass(Priority::kNormal);  // of idle units

    EvictionRank rank() const { return {leaving_class, need}; }
  };

  explicit MoveQueues(PoolNumber pools = 1);

  // The unit's state, its next need or its leaving has changed.
  void Update(Unit unit, const UnitState& state, const ResidencyPlan& plan);

  // The first of a queue, of all pools; nullopt: it is empty.
  std::optional<Next> First(Queue queue) const;
  // The first of a pool's; kNoPool: of those that may go to any.
  std::optional<Next> First(Queue queue, PoolNumber pool) const;
  // One of a pool's for which `may(unit)` is true. It is asked for the first unit of each size
  // class, and if that may not, for the smallest. The answer is the first of those that may. Where
  // `may` is a limit of the bytes, a unit is found if there is one. Cost: O(size classes).
  template <typename May>
  std::optional<Next> First(Queue queue, PoolNumber pool, May may) const;
  // The same of all pools; the limit may be another for each pool.
  template <typename May>
  std::optional<Next> FirstOfAll(Queue queue, May may) const;
  bool IsEmpty(Queue queue) const;
  size_t size(Queue queue) const;
  bool Contains(Queue queue, Unit unit) const;

 private:
  static constexpr size_t kQueues = static_cast<size_t>(Queue::kNone);
  using Rank = std::tuple<int, int64_t, double, int64_t>;  // the largest is first
  // A unit's place in one queue; each has two: the idle queues are apart.
  struct Entry {
    Queue queue = Queue::kNone;
    PoolNumber pool = kNoPool;
    uint32_t rank_position = kNotInHeap;
    uint32_t size_position = kNotInHeap;
    int leaving_class = LeavingClass(Priority::kNormal);
    Position need = kNoPosition;
    Bytes bytes = {};  // zero in a queue without size classes
    Rank rank = {};
  };
  struct RankTraits {
    std::vector<Entry>* entries;
    const Rank& Key(uint32_t row) const { return (*entries)[row].rank; }
    uint32_t& Position(uint32_t row) const { return (*entries)[row].rank_position; }
  };
  struct SizeTraits {
    std::vector<Entry>* entries;
    int64_t Key(uint32_t row) const { return -static_cast<int64_t>((*entries)[row].bytes.count()); }
    uint32_t& Position(uint32_t row) const { return (*entries)[row].size_position; }
  };
  struct SizeClass {
    IndexedHeap by_rank;
    IndexedHeap by_size;  // the smallest first; empty in a queue without size classes
  };
  struct SizeClasses {
    std::vector<SizeClass> by_class;
    uint64_t filled = 0;  // a bit for each class that is not empty
  };

  static std::pair<Queue, Position> QueueOf(Unit unit, const UnitState& state,
                                            const ResidencyPlan& plan);
  static bool IsIdle(Queue queue) {
    return queue == Queue::kIdleClean || queue == Queue::kIdleDirty;
  }
  static bool LastFirst(Queue queue) { return queue == Queue::kDead || IsIdle(queue); }
  static bool HasSizeClasses(Queue queue) { return queue == Queue::kLeaves || IsIdle(queue); }
  static size_t ClassOf(Bytes bytes) { return std::bit_width(bytes.count()); }
  static PoolNumber PoolOf(Unit unit, Queue queue, const UnitState& state,
                           const ResidencyPlan& plan);
  // `least_worth`, `order`: the largest first, of equal needs.
  void Put(std::vector<Entry>* entries, Unit unit, const Entry& next, double least_worth,
           int64_t order);
  // Into the queue of its entry, and out of it. `with_size`: also by size.
  void Insert(std::vector<Entry>* entries, Unit unit, bool with_size);
  void Erase(std::vector<Entry>* entries, Unit unit, bool with_size);
  SizeClasses& ClassesOf(Queue queue, PoolNumber pool) {
    return classes_[static_cast<size_t>(queue)][pool == kNoPool ? pools_ : pool];
  }
  const SizeClasses& ClassesOf(Queue queue, PoolNumber pool) const {
    return classes_[static_cast<size_t>(queue)][pool == kNoPool ? pools_ : pool];
  }
  // REQUIRES, of both: the unit is in that queue.
  const Entry& EntryOf(Queue queue, Unit unit) const {
    return (IsIdle(queue) ? idle_ : work_)[unit];
  }
  Next NextOf(Queue queue, Unit unit) const {
    const Entry& entry = EntryOf(queue, unit);
    return {unit, entry.need, entry.leaving_class};
  }

  const PoolNumber pools_;
  // Of each queue those for each pool, and those for units of no pool.
  std::array<std::vector<SizeClasses>, kQueues> classes_;
  std::vector<Entry> work_;  // by unit
  std::vector<Entry> idle_;  // by unit
};

template <typename May>
std::optional<MoveQueues::Next> MoveQueues::First(Queue queue, PoolNumber pool, May may) const {
  std::optional<Unit> first;
  const SizeClasses& classes = ClassesOf(queue, pool);
  for (uint64_t left = classes.filled; left != 0; left &= left - 1) {
    const SizeClass& units = classes.by_class[std::countr_zero(left)];
    Unit unit = units.by_rank[0];
    const auto is_later = [&] {
      return first && EntryOf(queue, unit).rank <= EntryOf(queue, *first).rank;
    };
    if (is_later()) continue;
    if (!may(unit)) {
      if (units.by_size.size() <= 1) continue;
      unit = units.by_size[0];
      if (is_later() || !may(unit)) continue;
    }
    first = unit;
  }
  if (!first) return std::nullopt;
  return NextOf(queue, *first);
}

template <typename May>
std::optional<MoveQueues::Next> MoveQueues::FirstOfAll(Queue queue, May may) const {
  std::optional<Next> first = First(queue, kNoPool, may);
  for (PoolNumber pool = 0; pool < pools_; ++pool) {
    const auto next = First(queue, pool, may);
    if (next && (!first || EntryOf(queue, first->unit).rank < EntryOf(queue, next->unit).rank))
      first = next;
  }
  return first;
}

}  // namespace ravenstore::core::plan
