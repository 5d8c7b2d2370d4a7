#include "core/plan/planned_copies.h"

#include <algorithm>

#include "core/check.h"

namespace ravenstore::core::plan {

PlannedCopies::PlannedCopies(const std::vector<CopyPool>& pools)
    : pools_(pools), states_(pools.size()) {
  RAVEN_CHECK(!pools.empty());
}

PoolNumber PlannedCopies::Cheapest(Bytes bytes) const {
  PoolNumber cheapest = kNoPool;
  Duration least = Duration::max();
  for (PoolNumber pool = 0; pool < states_.size(); ++pool) {
    if (!HasRoom(pool, bytes)) continue;
    const Duration price =
        states_[pool].link_free + pools_[pool].OutOf(bytes) + pools_[pool].InOf(bytes);
    if (price >= least) continue;
    least = price;
    cheapest = pool;
  }
  return cheapest;
}

PoolNumber PlannedCopies::CheapestOrLast(Bytes bytes) const {
  const PoolNumber pool = Cheapest(bytes);
  return pool == kNoPool ? static_cast<PoolNumber>(states_.size() - 1) : pool;
}

Duration PlannedCopies::OutOf(Bytes bytes) const {
  return pools_[CheapestOrLast(bytes)].OutOf(bytes);
}

Duration PlannedCopies::LinkFree(Bytes bytes) const {
  return states_[CheapestOrLast(bytes)].link_free;
}

void PlannedCopies::Remove(PoolNumber pool, Bytes bytes) {
  states_[pool].used = Minus(states_[pool].used, bytes);
}

Duration PlannedCopies::Copy(PoolNumber pool, Bytes bytes, Duration since) {
  State& state = states_[pool];
  state.link_free = std::max(state.link_free, since) + pools_[pool].OutOf(bytes);
  return state.link_free;
}

}  // namespace ravenstore::core::plan
