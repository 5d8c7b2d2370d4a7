// Pools whose memory comes and goes chunk by chunk: what is harvested of devices, and what other
// nodes lend.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/scheduler.h"

namespace ravenstore::core {

namespace {
// Copies on that begin in one go; the others in the next pass.
constexpr size_t kMovedOnAtOnce = 4096;
// A copy on that failed, or found no room, is not tried again before this long.
constexpr Duration kPause = std::chrono::milliseconds(100);
}  // namespace

void Scheduler::On(const PoolLimit& event) {
  AwayPools::Member& pool = away_[event.pool];
  RAVEN_CHECK(pool.comes_and_goes());
  pool.most = std::min(event.most, pool.range());
  BalanceChunks(event.pool);
}

void Scheduler::On(const ChunkRecalled& event) {
  TakeChunk(event.pool, event.offset, AwayPools::Taken::kRecalled);
}

void Scheduler::On(const ChunkKept& event) {
  AwayPools::Member& pool = away_[event.pool];
  RAVEN_CHECK(pool.comes_and_goes());
  const auto taken = pool.taken.find(event.offset);
  if (taken == pool.taken.end() || taken->second != AwayPools::Taken::kRecalled) return;
  pool.taken.erase(taken);
  BalanceChunks(event.pool);
  TouchWaiting();
}

void Scheduler::On(const ChunkLost& event) {
  TakeChunk(event.pool, event.offset, AwayPools::Taken::kLost);
  DropLost(away_[event.pool]);
  TouchWaiting();
}

// One that was let go is on its way out already, and one that is not there yet closes as it comes.
void Scheduler::TakeChunk(PoolId id, Bytes offset, AwayPools::Taken how) {
  AwayPools::Member& pool = away_[id];
  RAVEN_CHECK(pool.comes_and_goes());
  if (!pool.Has(offset)) return;
  AwayPools::Taken& taken = pool.taken.try_emplace(offset, how).first->second;
  taken = std::max(taken, how);
  CloseTaken(pool);
}

void Scheduler::CloseTaken(AwayPools::Member& pool) {
  for (const auto& [offset, how] : pool.taken) {
    if (const auto chunk = pool.OpenAt(offset)) pool.Close(*chunk);
  }
  pool.look = true;
}

Bytes Scheduler::MostIn(PoolId id) const {
  const AwayPools::Member& pool = away_[id];
  if (!pool.owner) return pool.most;
  const PoolId owner = PoolOf(*pool.owner);
  const Bytes beside = Minus(quota_.LimitOf(owner), quota_.Of(owner).held);
  const Bytes most = std::min(pool.most, Minus(beside, pool.claimed));
  return now_ < pool.ahead_until ? Minus(most, pool.ahead) : most;
}

void Scheduler::GrowChunks(PoolId id, Bytes need) {
  AwayPools::Member& pool = away_[id];
  if (pool.failed || pool.IsGrowing() || now_ < pool.grows_after) return;
  if (pool.LargestHole() >= (need > Bytes{0} ? need : pool.chunk)) return;
  // Of a device chunks of any size can be had, of other nodes pieces of one.
  const Bytes unit = pool.owner ? options_.granularity : pool.chunk;
  if (!pool.owner && need > MostIn(id)) return;  // no number of them would do
  const Bytes room = Minus(MostIn(id), pool.committed()).RoundDown(unit);
  if (room == Bytes{0}) return;
  const Bytes wanted = pool.owner ? std::max(pool.chunk, need.RoundUp(unit)) : pool.chunk;
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

void Scheduler::BalanceChunks(PoolId id) {
  AwayPools::Member& pool = away_[id];
  CloseTaken(pool);
  const Bytes most = MostIn(id);
  if (pool.size() > most) {
    for (const Range& chunk : CheapestChunks(pool, pool.size() - most)) pool.Close(chunk);
  }
  for (const Range& chunk : std::vector(pool.closed())) {
    if (!pool.taken.contains(chunk.first) && pool.size() + chunk.second <= most) pool.Open(chunk);
  }
  // What its owner does not miss is taken ahead of need; what other nodes lend, for what leaves.
  if (pool.owner) GrowChunks(id, Bytes{0});
}

void Scheduler::DropLost(AwayPools::Member& pool) {
  for (const Range& chunk : std::vector(pool.closed())) {
    for (const uint32_t row : RowsIn(pool, chunk)) {
      TensorRow& tensor = catalog_[row];
      if (FindClient(tensor.client) != nullptr && pool.IsLost(tensor.away.block)) LoseCopy(tensor);
    }
  }
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
          return;
        }
        if (!MoveOn(tensor)) LookLater(pool);
      }
    }
  }
}

void Scheduler::LetGoOfEmptied(PoolId id) {
  AwayPools::Member& pool = away_[id];
  for (const Range& chunk : std::vector(pool.closed())) {
    if (!pool.IsEmptied(chunk)) continue;
    pool.LetGo(chunk);
    pool.taken.erase(chunk.first);
    pool.idle.erase(chunk.first);
    plan_->push_back(ShrinkPool{id, chunk.first, chunk.second});
  }
}

bool Scheduler::MoveOn(TensorRow& tensor) {
  if (!away_[tensor.away.pool].covered && !TakeCover(tensor, RedundantCopies::kMayDrop))
    return false;
  Unlist(tensor);
  Catalog::Commit(tensor, TensorState::kMovingOn);
  const Place to{kHostPool, host_.OffsetOf(covers_.at(Catalog::RowOf(tensor.id)))};
  plan_->push_back(Move{NameOf(tensor), AwayOf(tensor), to, tensor.size, Move::Source::kStays,
                        /*demand=*/true, tensor.client});
  return true;
}

void Scheduler::LookLater(AwayPools::Member& pool) const {
  pool.look = true;
  pool.moves_after = now_ + kPause;
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
    if (!pool.covered) FreeCover(tensor);
    LookLater(pool);
  }
  Catalog::Commit(tensor, TensorState::kAway);
  List(tensor);
}

void Scheduler::NoteUse(AwayPools::Member& pool, ExtentMap::Block block) {
  const Bytes begin = pool.OffsetOf(block);
  std::erase_if(pool.idle, [&](Bytes chunk) {
    return chunk < begin + pool.SizeOf(block) && begin < chunk + pool.chunk;
  });
}

// A chunk is idle if it is empty at two looks and nothing came to lie there between.
void Scheduler::ReturnIdleChunks(AwayPools::Member& pool) {
  if (now_ >= pool.idle_look) {
    pool.idle_look = now_ + kLentIdleFor;
    const std::set<Bytes> before = std::exchange(pool.idle, {});
    for (const Range& chunk : std::vector(pool.chunks())) {
      if (!pool.IsFree(chunk.first, chunk.second)) continue;
      if (before.contains(chunk.first)) {
        pool.Close(chunk);
      } else {
        pool.idle.insert(chunk.first);
      }
    }
  }
  if (pool.size() > Bytes{0}) WakeAt(pool.idle_look);
}

void Scheduler::ServeChunks() {
  for (auto& [id, pool] : away_) {
    if (!pool.comes_and_goes()) continue;
    if (!pool.owner) ReturnIdleChunks(pool);
    if (pool.closed().empty()) {
      if (pool.leaving() == Bytes{0}) pool.claimed = Bytes{0};
      continue;
    }
    if (pool.look) DropLost(pool);
    if (now_ >= pool.moves_after && std::exchange(pool.look, false)) EmptyChunks(id);
    if (pool.look) WakeAt(std::max(now_, pool.moves_after));
    LetGoOfEmptied(id);
  }
}

}  // namespace ravenstore::core
