// The copies of a client's units in other pools, and what each pool holds.
//
// A unit has one copy at most. It is redundant where the device has the same bytes: it can then be
// dropped for another. A unit that comes counts in its pool until it is resident.
//
// Owns: the counts; the copies themselves are the backend's. Units: bytes. Threads: one at a time.
// Cost: O(log redundant copies) a change.
#pragma once

#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/plan/copy_pools.h"
#include "core/plan/unit_state.h"
#include "core/plan/units.h"
#include "core/types.h"

namespace ravenstore::core {

class UnitCopies {
 public:
  // `pools` outlives it. `page`: the bytes of one.
  UnitCopies(const std::vector<plan::CopyPool>& pools, Bytes page);

  const plan::CopyPools& pools() const { return pools_; }
  void Resize(size_t units) { units_.resize(units); }

  // The unit's copy in the pool has at least these bytes. REQUIRES: it has none in another pool.
  void Add(plan::Unit unit, plan::PoolNumber pool, Bytes bytes);
  // The copy has fewer bytes. REQUIRES: it is not redundant.
  void Shrink(plan::Unit unit, plan::PoolNumber pool, Bytes bytes);
  // It has none any more. REQUIRES: it has one, in this pool.
  void Remove(plan::Unit unit, plan::PoolNumber pool);
  // The copy is in another pool from now on. REQUIRES: it is not redundant.
  void Move(plan::Unit unit, plan::PoolNumber from, plan::PoolNumber to);
  // Copies that were removed since the last call, in order: the backend frees their memory.
  struct Removed {
    plan::Unit unit;
    plan::PoolNumber pool;
  };
  std::vector<Removed> TakeRemoved() { return std::exchange(removed_, {}); }
  // REQUIRES: the unit has a copy in the pool.
  void SetRedundant(plan::Unit unit, plan::PoolNumber pool, bool redundant);
  // Those of a pool.
  const std::set<plan::Unit>& Redundant(plan::PoolNumber pool) const { return redundant_[pool]; }

  // The unit's memory counts as coming from the pool, or does not any more.
  void BeginComing(plan::Unit unit, plan::PoolNumber pool, Bytes memory);
  void EndComing(plan::Unit unit);

  // The pools hold the copies of these units, each where it says. For
  // tests; O(units).
  void Check(std::span<const plan::UnitState> units) const;

 private:
  struct Copy {
    Bytes bytes;
    Bytes coming;  // zero: it does not come
    plan::PoolNumber from = plan::kNoPool;
  };

  plan::CopyPools pools_;
  std::vector<Copy> units_;
  std::vector<std::set<plan::Unit>> redundant_;  // by pool
  std::vector<Removed> removed_;
};

}  // namespace ravenstore::core
