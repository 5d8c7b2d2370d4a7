// Room for tensors away from their devices: in which pool, and from redundant copies.
#include <algorithm>

#include "core/check.h"
#include "core/planner_state.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {
// Redundant copies discarded in one go when a pool is full.
constexpr int kCopiesPerDrop = 256;
}  // namespace

CopyLedger::Lane Planner::State::NextLane(const ClientArena& arena) const {
  const AwayPools::Departure slab = DepartureOf(arena, options_.slab, Leaving::kNow);
  return LaneOf(arena, away_.Next(slab, quota_.HostForCopies()));
}

bool Planner::State::AllocateAway(TensorRow& tensor, RedundantCopies redundant, Leaving leaving) {
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

bool Planner::State::TryAllocateAway(TensorRow& tensor, PoolId pool, RedundantCopies redundant) {
  Client& client = *FindClient(tensor.client);
  if (!MakeAwayBudget(client, pool, tensor.size, tensor.size, redundant)) return false;
  if (pool == kHostPool && !MakeHostShare(client, tensor.size, redundant)) return false;
  const auto block = TakeAwayRoom(client, pool, tensor, redundant);
  if (!block) {
    // What redundant copies take is no lack of room.
    if (redundant == RedundantCopies::kMayDrop) away_[pool].scarce_until = now_ + kScarceFor;
    return false;
  }
  // It stood in another pool's list.
  if (tensor.away.pool != pool) tensor.redundant_copy = false;
  tensor.away.pool = pool;
  tensor.away.block = *block;
  quota_.Charge(tensor.client, pool, tensor.size);
  if (pool == kHostPool) EnsureHostAhead(Bytes{0});
  return true;
}

bool Planner::State::MakeAwayBudget(Client& client, PoolId pool, Bytes of_client, Bytes of_tenant,
                                    RedundantCopies redundant) {
  const auto exceeded = [&] { return quota_.Exceeded(client.id, pool, of_client, of_tenant); };
  if (!exceeded()) return true;
  if (redundant == RedundantCopies::kKeep) return false;
  DropRedundantCopies(client, pool, of_tenant);
  for (auto other = clients_.begin(); other != clients_.end() && exceeded(); ++other) {
    // Only copies of the same tenant make room within its budget.
    if (exceeded() == Limit::kClient) return false;
    if (other->second->tenant == client.tenant)
      DropRedundantCopies(*other->second, pool, of_tenant);
  }
  return !exceeded();
}

bool Planner::State::MakeHostShare(Client& client, Bytes more, RedundantCopies redundant) {
  if (quota_.IsWithinHostShare(client.id, more)) return true;
  if (redundant == RedundantCopies::kKeep) return false;
  if (irrevocable_ && quota_.TakeKept(*served_, more)) return true;
  DropRedundantCopies(client, kHostPool, more);
  for (auto other = clients_.begin(); other != clients_.end(); ++other) {
    if (quota_.IsWithinHostShare(client.id, more)) return true;
    if (MayDropCopiesOf(*other->second, kHostPool, client))
      DropRedundantCopies(*other->second, kHostPool, more);
  }
  return quota_.IsWithinHostShare(client.id, more);
}

void Planner::State::FreeAway(TensorRow& tensor) {
  tensor.away.state = Replica::State::kEmpty;
  if (!tensor.away.is_placed()) return;
  away_[tensor.away.pool].Free(tensor.away.block);
  tensor.away.block = ExtentMap::kNone;
  quota_.Refund(tensor.client, tensor.away.pool, tensor.size);
}

std::optional<ExtentMap::Block> Planner::State::TakeAwayRoom(Client& client, PoolId id,
                                                             const TensorRow& tensor,
                                                             RedundantCopies redundant) {
  AwayPool& pool = away_[id];
  const uint32_t row = Catalog::RowOf(tensor.id);
  auto block = pool.Allocate(tensor.size, row);
  if (block) return block;
  if (id == kHostPool) EnsureHostAhead(tensor.size);
  if (pool.IsGrowing()) return std::nullopt;  // its answer brings us back
  if (redundant == RedundantCopies::kKeep) return std::nullopt;
  DropRedundantCopies(client, id, tensor.size);
  block = pool.Allocate(tensor.size, row);
  for (auto other = clients_.begin(); other != clients_.end() && !block; ++other) {
    if (!MayDropCopiesOf(*other->second, id, client)) continue;
    DropRedundantCopies(*other->second, id, tensor.size);
    block = pool.Allocate(tensor.size, row);
  }
  return block;
}

bool Planner::State::MayDropCopiesOf(const Client& client, PoolId pool,
                                     const Client& asking) const {
  const auto copies = client.redundant_copies.find(pool);
  if (copies == client.redundant_copies.end() || copies->second.empty()) return false;
  return pool == kHostPool ? quota_.MayDropCopiesOf(client.id, asking.id)
                           : client.tenant == asking.tenant;
}

void Planner::State::NoteRedundantCopy(TensorRow& tensor) {
  if (tensor.redundant_copy) return;
  Client& client = *FindClient(tensor.client);
  std::deque<TensorId>& copies = client.redundant_copies[tensor.away.pool];
  // Stale ids must not pile up where room is never short: for each that comes two are looked at, of
  // which those that still hold go to the end.
  const size_t most = 2 * client.slots.tensors() + kCopiesPerDrop;
  for (int i = 0; i < 2 && copies.size() > most; ++i) {
    const TensorId oldest = copies.front();
    copies.pop_front();
    TensorRow* listed = catalog_.Find(oldest);
    if (listed == nullptr || listed->away.pool != tensor.away.pool) continue;
    listed->redundant_copy = listed->has_copy() && listed->residency() == Residency::kOnDevice;
    if (listed->redundant_copy) copies.push_back(oldest);
  }
  copies.push_back(tensor.id);
  tensor.redundant_copy = true;
  ++redundant_copies_noted_;
}

void Planner::State::On(const PoolFailed& event) {
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

void Planner::State::LoseCopy(TensorRow& tensor) {
  // What is copied to or from there hears of its copy's failure, and needs its place until then.
  if (!tensor.has_copy() || tensor.state() == TensorState::kArriving) return;
  Unlist(tensor);
  FreeAway(tensor);
  if (tensor.state() == TensorState::kAway) return Lose(tensor);
  Reindex(tensor);
}

void Planner::State::Lose(TensorRow& tensor) {
  Catalog::Commit(tensor, TensorState::kLost);
  if (tensor.waiting) Fail(requests_.FetchOf(tensor.id), ErrorCode::kLost, WhyLost(tensor));
}

std::string Planner::State::WhyLost(const TensorRow& tensor) const {
  const PoolId pool = tensor.away.pool;
  if (!away_[pool].failed) return "a copy of them failed";
  return "they were in " + NameOf(pool) + ", which failed";
}

// Tensors on their device do not need the copy; they become dirty again.
void Planner::State::DropRedundantCopies(Client& client, PoolId pool, Bytes need) {
  away_[pool].short_until = now_ + kPoolShortFor;
  std::deque<TensorId>& copies = client.redundant_copies[pool];
  Bytes freed;
  for (int i = 0; i < kCopiesPerDrop && freed < need && !copies.empty(); ++i) {
    TensorRow* tensor = catalog_.Find(copies.front());
    copies.pop_front();
    if (tensor == nullptr || tensor->away.pool != pool) continue;
    tensor->redundant_copy = false;
    if (!tensor->has_copy() || tensor->state() != TensorState::kResident) continue;
    freed += tensor->size;
    FreeAway(*tensor);
    Reindex(*tensor);
  }
}

void Planner::State::EnsureHostAhead(Bytes need) {
  const Bytes capacity = quota_.HostForCopies();
  if (host_.IsGrowing() || host_.leaving() > Bytes{0} || host_.end() >= capacity) return;
  if (now_ < host_backoff_until_) return;
  // The driver does one thing at a time, and pinning 64 MiB takes as long as fifty slabs.
  if (need == Bytes{0} && now_ < slabs_come_until_) return WakeAt(slabs_come_until_);
  if (need == Bytes{0} && now_ < pinned_wanted_until_) return WakeAt(pinned_wanted_until_);
  const Bytes most = std::min(capacity, quota_.HostBudgets().RoundUp(options_.host_step));
  const Bytes wanted = std::min(most, host_.used() + std::max(options_.host_ahead, need));
  // A request that no hole takes wants more even when there is room in sum.
  const bool fragmented = need > Bytes{0} && host_.LargestHole() < need;
  if (host_.end() >= most || (host_.end() >= wanted && !fragmented)) return;
  const auto [offset, size] = host_.Grow(std::min(options_.host_step, capacity - host_.end()));
  plan_->push_back(GrowHost{offset, size});
}

}  // namespace ravenstore::core
