// What blocks of pinned memory take of the host pool: its capacity, its budgets and its shares.
#include <utility>

#include "core/scheduler.h"

namespace ravenstore::core {

namespace {
// After room was wanted of the other side, it does not take more, or is not asked again, before.
constexpr Duration kPause = std::chrono::milliseconds(100);
}  // namespace

void Scheduler::On(const PinnedHeld& event) {
  if (quota_.SetPinned(event.tenant, event.bytes) <= event.bytes) return;
  EnsureHostAhead(Bytes{0});
  if (std::exchange(away_wanted_, false)) TouchWaiting();
}

void Scheduler::On(const PinnedUsed& event) {
  if (FindClient(event.client) != nullptr) quota_.SetPinned(event.client, event.bytes);
}

void Scheduler::On(const PoolShrunk& event) {
  away_[event.pool].Shrunk({event.offset, event.size});
  if (event.pool == kHostPool) return;
  CountHarvest(event.pool);
  TouchWaiting();
}

void Scheduler::On(const PoolShrinkFailed& event) {
  away_[event.pool].ShrinkFailed(event.size);
  if (event.pool != kHostPool) TouchWaiting();
}

void Scheduler::On(const PinnedWanted& event) {
  Client* client = FindClient(event.client);
  if (client == nullptr || event.slab > options_.host_capacity) return;
  pinned_wanted_until_ = now_ + kPause;
  if (!MakeAwayBudget(*client, kHostPool, Bytes{0}, event.slab, RedundantCopies::kMayDrop)) return;
  if (!MakeHostShare(*client, event.slab, RedundantCopies::kMayDrop)) return;
  const auto missing = [&] {
    return Minus(quota_.Of(kHostPool).held + event.slab, options_.host_capacity);
  };
  for (auto other = clients_.begin(); other != clients_.end() && missing() > Bytes{0}; ++other) {
    if (MayDropCopiesOf(*other->second, kHostPool, *client))
      DropRedundantCopies(*other->second, kHostPool, missing());
  }
  ShrinkHostFor(event.slab);
}

// What the pool has pinned and nothing lives in is as good as any: it is unpinned from the end.
void Scheduler::ShrinkHostFor(Bytes slab) {
  if (host_.IsGrowing()) return;  // what comes goes behind what would leave
  const Bytes pinned = quota_.Of(kHostPool).pinned;
  while (host_.size() + pinned + slab > options_.host_capacity) {
    const auto chunk = host_.Shrink();
    if (!chunk) return;
    plan_->push_back(ShrinkPool{kHostPool, chunk->first, chunk->second});
  }
}

void Scheduler::ReclaimPinnedFor(const TensorRow& tensor) {
  if (quota_.Of(kHostPool).pinned == Bytes{0} || now_ < pinned_asked_until_) return;
  pinned_asked_until_ = now_ + kPause;
  const TenantId id = FindClient(tensor.client)->tenant;
  const bool budget = quota_.Of(id, kHostPool).held + tensor.size > quota_.BudgetsOf(id).host;
  plan_->push_back(ReclaimPinned{budget ? std::optional(id) : std::nullopt});
}

}  // namespace ravenstore::core
