// Harvested memory: idle memory of devices, which comes and goes with what their owners leave.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/scheduler.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {
// Copies on that begin in one go; the others in the next pass.
constexpr size_t kMovedOnAtOnce = 4096;
// A copy on that failed is not tried again, nor does a pool grow of which its device's own clients
// wanted memory, before this long.
constexpr Duration kPause = std::chrono::milliseconds(100);
}  // namespace

void Scheduler::On(const PoolLimit& event) {
  AwayPools::Member& pool = away_[event.pool];
  RAVEN_CHECK(pool.harvested);
  pool.most = std::min(event.most, pool.range());
  BalanceHarvest(event.pool);
}

Bytes Scheduler::HarvestMost(PoolId id) const {
  const AwayPools::Member& pool = away_[id];
  const DeviceId owner = away_.OwnerOf(id);
  const Bytes beside = Minus(quota_.LimitOf(PoolOf(owner)), quota_.Of(PoolOf(owner)).held);
  const Bytes most = std::min(pool.most, Minus(beside, pool.claimed));
  return now_ < pool.ahead_until ? Minus(most, pool.ahead) : most;
}

void Scheduler::TakeAhead(PoolId id) {
  AwayPools::Member& pool = away_[id];
  if (now_ >= pool.ahead_until) pool.ahead = Bytes{0};
  const Bytes taken = Minus(pool.size(), HarvestMost(id));
  if (taken == Bytes{0}) return;
  pool.ahead = std::min(pool.ahead + taken, kAheadOfOwner);
  pool.ahead_until = pool.grows_after = now_ + kPause;
}

void Scheduler::CountHarvest(PoolId id) {
  quota_.SetHarvested(PoolOf(away_.OwnerOf(id)), away_[id].committed());
}

bool Scheduler::TakeCover(const TensorRow& tensor, RedundantCopies redundant) {
  const auto block = TakeAwayPlace(tensor, kHostPool, redundant);
  if (block) covers_.emplace(Catalog::RowOf(tensor.id), *block);
  return block.has_value();
}

void Scheduler::GrowHarvest(PoolId id, Bytes need) {
  AwayPools::Member& pool = away_[id];
  if (pool.failed || pool.IsGrowing() || now_ < pool.grows_after) return;
  const Bytes wanted = std::max(options_.harvest_chunk, need.RoundUp(options_.granularity));
  if (pool.LargestHole() >= (need > Bytes{0} ? need : options_.harvest_chunk)) return;
  const Bytes room = Minus(HarvestMost(id), pool.committed()).RoundDown(options_.granularity);
  if (room == Bytes{0}) return;
  const auto [offset, size] = pool.Grow(std::min(wanted, room));
  CountHarvest(id);
  plan_->push_back(GrowPool{id, offset, size});
}

std::vector<uint32_t> Scheduler::RowsIn(const AwayPool& pool, const Range& chunk) const {
  std::vector<uint32_t> rows;
  for (ExtentMap::Block block = pool.At(chunk.first);
       block != ExtentMap::kNone && pool.OffsetOf(block) < chunk.first + chunk.second;
       block = pool.After(block)) {
    if (pool.KindOf(block) == AwayPool::Kind::kUsed) rows.push_back(pool.OwnerOf(block));
  }
  return rows;
}

std::vector<Range> Scheduler::CheapestChunks(const AwayPool& pool, Bytes bytes) const {
  std::vector<std::pair<double, Range>> chunks;
  for (const Range& chunk : pool.chunks()) {
    Bytes copied;
    for (const uint32_t row : RowsIn(pool, chunk)) {
      if (catalog_[row].state() != TensorState::kResident) copied += catalog_[row].size;
    }
    const double cost =
        static_cast<double>(copied.count()) / static_cast<double>(chunk.second.count());
    chunks.emplace_back(cost, chunk);
  }
  std::sort(chunks.begin(), chunks.end());
  std::vector<Range> cheapest;
  for (size_t i = 0; i < chunks.size() && bytes > Bytes{0}; ++i) {
    cheapest.push_back(chunks[i].second);
    bytes = Minus(bytes, chunks[i].second.second);
  }
  return cheapest;
}

void Scheduler::BalanceHarvest(PoolId id) {
  AwayPools::Member& pool = away_[id];
  const Bytes most = HarvestMost(id);
  if (pool.size() > most) {
    for (const Range& chunk : CheapestChunks(pool, pool.size() - most)) pool.Close(chunk);
  }
  for (const Range& chunk : std::vector(pool.closed())) {
    if (pool.size() + chunk.second <= most) pool.Open(chunk);
  }
  pool.look = true;
  GrowHarvest(id, Bytes{0});
}

void Scheduler::EmptyChunks(PoolId id) {
  AwayPools::Member& pool = away_[id];
  size_t moved = 0;
  for (const Range& chunk : std::vector(pool.closed())) {
    for (const uint32_t row : RowsIn(pool, chunk)) {
      TensorRow& tensor = catalog_[row];
      if (FindClient(tensor.client) == nullptr) continue;  // it is being forgotten
      if (tensor.state() == TensorState::kResident) {
        FreeAway(tensor);
        Reindex(tensor);
      } else if (tensor.state() == TensorState::kAway) {
        if (moved++ == kMovedOnAtOnce) {
          pool.look = true;
          return WakeAt(now_);
        }
        MoveOn(tensor);
      }
    }
  }
}

void Scheduler::LetGoOfEmptied(PoolId id) {
  AwayPools::Member& pool = away_[id];
  for (const Range& chunk : std::vector(pool.closed())) {
    if (!pool.IsEmptied(chunk)) continue;
    pool.LetGo(chunk);
    plan_->push_back(ShrinkPool{id, chunk.first, chunk.second});
  }
}

void Scheduler::MoveOn(TensorRow& tensor) {
  Unlist(tensor);
  Catalog::Commit(tensor, TensorState::kMovingOn);
  const Place to{kHostPool, host_.OffsetOf(covers_.at(Catalog::RowOf(tensor.id)))};
  plan_->push_back(Move{NameOf(tensor), AwayOf(tensor), to, tensor.size, Move::Source::kStays,
                        /*demand=*/true, tensor.client});
}

void Scheduler::EndMoveOn(TensorRow& tensor, const Moved& event) {
  TouchFetch(tensor);
  if (FinishIfGone(tensor)) return;
  AwayPools::Member& pool = away_[tensor.away.pool];
  if (event.outcome == Moved::Outcome::kDone) {
    pool.Free(tensor.away.block);
    quota_.Refund(tensor.client, tensor.away.pool, tensor.size);
    const auto cover = covers_.find(Catalog::RowOf(tensor.id));
    tensor.away.pool = kHostPool;
    tensor.away.block = cover->second;
    covers_.erase(cover);
  } else if (pool.failed) {
    FreeAway(tensor);
    return Lose(tensor);
  } else {
    pool.moves_after = now_ + kPause;
    WakeAt(pool.moves_after);
  }
  Catalog::Commit(tensor, TensorState::kAway);
  List(tensor);
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
  BalanceHarvest(*id);
  return !pool.closed().empty() || pool.leaving() > Bytes{0};
}

void Scheduler::ServeHarvest() {
  for (auto& [id, pool] : away_) {
    if (!pool.harvested) continue;
    if (pool.closed().empty()) {
      if (pool.leaving() == Bytes{0}) pool.claimed = Bytes{0};
      continue;
    }
    if (now_ >= pool.moves_after && std::exchange(pool.look, false)) EmptyChunks(id);
    LetGoOfEmptied(id);
  }
}

}  // namespace ravenstore::core
