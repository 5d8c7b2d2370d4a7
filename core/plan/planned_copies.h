// Which pool the copy of each unit goes to that leaves in a plan.
//
// Of the pools with room it is the cheapest one: where the copy there, after those that are planned
// before it, and the way back end first. A pool has to hold the copies of units that are away. The
// copies of resident units can be dropped.
//
// Owns: what each pool holds at the position of the plan, and how long its link is busy. Units:
// bytes; times of the plan. Threads: one at a time. Cost: O(pools) a call.
#pragma once

#include <vector>

#include "core/plan/copy_pools.h"
#include "core/types.h"

namespace ravenstore::core::plan {

class PlannedCopies {
 public:
  // `pools` outlives it. REQUIRES: there is one.
  explicit PlannedCopies(const std::vector<CopyPool>& pools);

  bool HasRoom(PoolNumber pool, Bytes bytes) const {
    return bytes <= Minus(pools_[pool].capacity, states_[pool].used);
  }
  // The cheapest pool with room; kNoPool: there is none.
  PoolNumber Cheapest(Bytes bytes) const;
  // Of that pool, or of the last one where no pool has room: how long a copy there takes, and when
  // the copies there end that are planned so far.
  Duration OutOf(Bytes bytes) const;
  Duration LinkFree(Bytes bytes) const;

  // The unit is away, and its copy is in the pool.
  void Add(PoolNumber pool, Bytes bytes) { states_[pool].used += bytes; }
  // It is away no more.
  void Remove(PoolNumber pool, Bytes bytes);
  // Its bytes are copied to the pool; they may be from `since` on. Returns when the copy ends.
  Duration Copy(PoolNumber pool, Bytes bytes, Duration since);

 private:
  struct State {
    Bytes used;
    Duration link_free{0};
  };

  PoolNumber CheapestOrLast(Bytes bytes) const;

  const std::vector<CopyPool>& pools_;
  std::vector<State> states_;
};

}  // namespace ravenstore::core::plan
