// Harvested memory: what is a device's own of the pools that come and go (scheduler_chunks.cc). Its
// own clients come first, and what lies there has a place on the host as well.
#include <algorithm>

#include "core/scheduler.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {
// A pool does not grow again before this long after its device's own clients wanted memory of it.
constexpr Duration kPause = std::chrono::milliseconds(100);
}  // namespace

void Scheduler::TakeAhead(PoolId id) {
  AwayPools::Member& pool = away_[id];
  if (now_ >= pool.ahead_until) pool.ahead = Bytes{0};
  const Bytes taken = Minus(pool.size(), MostIn(id));
  if (taken == Bytes{0}) return;
  pool.ahead = std::min(pool.ahead + taken, kAheadOfOwner);
  pool.ahead_until = pool.grows_after = now_ + kPause;
}

void Scheduler::CountHarvest(PoolId id) {
  const AwayPools::Member& pool = away_[id];
  if (pool.owner) quota_.SetHarvested(PoolOf(*pool.owner), pool.committed());
}

bool Scheduler::TakeCover(const TensorRow& tensor, RedundantCopies redundant) {
  const auto block = TakeAwayPlace(tensor, kHostPool, redundant);
  if (block) covers_.emplace(Catalog::RowOf(tensor.id), *block);
  return block.has_value();
}

bool Scheduler::TakeHarvest(ClientArena& arena, Bytes need) {
  const auto id = away_.HarvestOf(arena.device);
  if (!id || away_[*id].committed() == Bytes{0}) return false;
  const auto lack = LackFor(arena, need);
  if (!lack || lack->binding != Limit::kPool) return false;
  AwayPools::Member& pool = away_[*id];
  pool.claimed = lack->place.missing;
  pool.grows_after = now_ + kPause;
  TakeAhead(*id);
  BalanceChunks(*id);
  return !pool.closed().empty() || pool.leaving() > Bytes{0};
}

}  // namespace ravenstore::core
