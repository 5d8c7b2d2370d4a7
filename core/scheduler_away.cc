// Room for tensors away from their devices: in which pool, and from redundant copies.
#include <algorithm>

#include "core/check.h"
#include "core/scheduler.h"
#include "core/tuned.h"

namespace ravenstore::core {

bool Scheduler::PlaceCopyOut(TensorRow& tensor, RedundantCopies redundant, Leaving leaving) {
  if (!AllocateAway(tensor, redundant, leaving)) return false;
  copies_.Begin(LaneOf(tensor), Way::kOut, tensor.size);
  return true;
}

bool Scheduler::AllocateAway(TensorRow& tensor, RedundantCopies redundant, Leaving leaving) {
  if (tensor.away.is_placed()) return true;
  const ClientArena& arena = *ArenaOf(tensor);
  const auto choices = away_.For(DepartureOf(arena, tensor.size, leaving));
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto [cost, price, pool] = choices[i];
    // A copy that nobody waits for yet waits for the best pool.
    const bool busy = now_ < away_[pool].short_until ||
                      !copies_.MayBegin(LaneOf(arena, pool), Way::kOut, tensor.size);
    if (leaving == Leaving::kAhead && busy) return false;
    if (TryAllocateAway(tensor, pool, RedundantCopies::kKeep)) return true;
    // To copy what is redundant once more may cost less than the next pool; and what only might
    // leave later may wait until there is room.
    const Duration again = topology_.Cost(arena.pool(), pool, tensor.size);
    if (i + 1 == choices.size() || choices[i + 1].cost <= cost + again) continue;
    if (leaving == Leaving::kAhead) return false;
    if (TryAllocateAway(tensor, pool, RedundantCopies::kMayDrop)) return true;
  }
  if (redundant == RedundantCopies::kKeep) return false;
  const auto allocated = [&](const AwayPools::Choice& choice) {
    return TryAllocateAway(tensor, choice.pool, RedundantCopies::kMayDrop);
  };
  if (std::any_of(choices.begin(), choices.end(), allocated)) return true;
  away_wanted_ = true;
  ReclaimPinnedFor(tensor);
  return false;
}

std::optional<ExtentMap::Block> Scheduler::TakeAwayPlace(const TensorRow& tensor, PoolId pool,
                                                         RedundantCopies redundant) {
  Client& client = *FindClient(tensor.client);
  if (!MakeAwayBudget(client, pool, tensor.size, tensor.size, redundant)) return std::nullopt;
  if (pool == kHostPool && !MakeHostShare(client, tensor.size, redundant)) return std::nullopt;
  const auto block = TakeAwayRoom(client, pool, tensor, redundant);
  if (block) {
    quota_.Charge(tensor.client, pool, tensor.size);
    if (pool == kHostPool) EnsureHostAhead(Bytes{0});
  } else if (redundant == RedundantCopies::kMayDrop) {
    // What redundant copies take is no lack of room.
    away_[pool].scarce_until = now_ + kScarceFor;
  }
  return block;
}

bool Scheduler::TryAllocateAway(TensorRow& tensor, PoolId pool, RedundantCopies redundant) {
  const auto block = TakeAwayPlace(tensor, pool, redundant);
  if (!block) return false;
  if (away_[pool].covered && !TakeCover(tensor, redundant)) {
    away_[pool].Free(*block);
    quota_.Refund(tensor.client, pool, tensor.size);
    return false;
  }
  // It stood in another pool's list.
  if (tensor.away.pool != pool) tensor.redundant_copy = false;
  tensor.away.pool = pool;
  tensor.away.block = *block;
  if (away_[pool].comes_and_goes()) {
    NoteUse(away_[pool], *block);
    GrowChunks(pool, Bytes{0});
  }
  return true;
}

bool Scheduler::MakeHostShare(Client& client, Bytes more, RedundantCopies redundant) {
  if (quota_.IsWithinHostShare(client.id, more)) return true;
  if (redundant == RedundantCopies::kKeep) return false;
  if (irrevocable_ && quota_.TakeKept(*served_, more)) return true;
  DropRedundantCopies(client, kHostPool, more);
  if (quota_.IsWithinHostShare(client.id, more)) return true;
  for (Client* other : ByRank(kHostPool)) {
    if (!MayDropCopiesOf(*other, kHostPool, client)) continue;
    DropRedundantCopies(*other, kHostPool, more);
    if (quota_.IsWithinHostShare(client.id, more)) return true;
  }
  return false;
}

std::optional<ExtentMap::Block> Scheduler::TakeAwayRoom(Client& client, PoolId id,
                                                        const TensorRow& tensor,
                                                        RedundantCopies redundant) {
  AwayPools::Member& pool = away_[id];
  const uint32_t row = Catalog::RowOf(tensor.id);
  auto block = pool.Allocate(tensor.size, row);
  if (block) return block;
  if (id == kHostPool) EnsureHostAhead(tensor.size);
  if (pool.comes_and_goes()) GrowChunks(id, tensor.size);
  if (pool.IsGrowing()) return std::nullopt;  // its answer brings us back
  if (redundant == RedundantCopies::kKeep) return std::nullopt;
  DropRedundantCopies(client, id, tensor.size);
  block = pool.Allocate(tensor.size, row);
  if (block) return block;
  for (Client* other : ByRank(id)) {
    if (!MayDropCopiesOf(*other, id, client)) continue;
    DropRedundantCopies(*other, id, tensor.size);
    block = pool.Allocate(tensor.size, row);
    if (block) return block;
  }
  return std::nullopt;
}

void Scheduler::On(const PoolRate& event) {
  if (event.bytes_per_second > 0) {
    rate_caps_[event.pool] = event.bytes_per_second;
  } else {
    rate_caps_.erase(event.pool);
  }
  topology_ = options_.topology.Capped(rate_caps_);
  away_.RatesChanged();
}

void Scheduler::On(const PoolFailed& event) {
  RAVEN_CHECK(event.pool != kHostPool);
  away_[event.pool].failed = true;
  for (uint32_t row = 0; row < catalog_.rows(); ++row) {
    TensorRow& tensor = catalog_[row];
    if (FindTensor(tensor.id) != nullptr && tensor.away.is_placed() &&
        tensor.away.pool == event.pool)
      LoseCopy(tensor);
  }
  TouchWaiting();
}

void Scheduler::LoseCopy(TensorRow& tensor) {
  // What is copied to or from there hears of its copy's failure, and needs its place until then.
  const TensorState state = tensor.state();
  if (!tensor.has_copy() || state == TensorState::kArriving || state == TensorState::kMovingOn)
    return;
  Unlist(tensor);
  FreeAway(tensor);
  if (tensor.state() == TensorState::kAway) return Lose(tensor);
  Reindex(tensor);
}

void Scheduler::Lose(TensorRow& tensor) {
  Catalog::Commit(tensor, TensorState::kLost);
  if (tensor.waiting) Fail(requests_.FetchOf(tensor.id), ErrorCode::kLost, WhyLost(tensor));
}

void Scheduler::EnsureHostAhead(Bytes need) {
  const Bytes capacity = quota_.HostForCopies();
  if (host_.IsGrowing() || host_.leaving() > Bytes{0} || host_.size() >= capacity) return;
  if (now_ < host_backoff_until_) return;
  // The driver does one thing at a time, and pinning 64 MiB takes as long as fifty slabs.
  if (need == Bytes{0} && now_ < slabs_come_until_) return WakeAt(slabs_come_until_);
  if (need == Bytes{0} && now_ < pinned_wanted_until_) return WakeAt(pinned_wanted_until_);
  const Bytes most = std::min(capacity, quota_.HostBudgets().RoundUp(options_.host_step));
  const Bytes wanted = std::min(most, host_.used() + std::max(options_.host_ahead, need));
  // A request that no hole takes wants more even when there is room in sum.
  const bool fragmented = need > Bytes{0} && host_.LargestHole() < need;
  if (host_.size() >= most || (host_.size() >= wanted && !fragmented)) return;
  const auto [offset, size] = host_.Grow(std::min(options_.host_step, capacity - host_.size()));
  plan_->push_back(GrowPool{kHostPool, offset, size});
}

}  // namespace ravenstore::core
