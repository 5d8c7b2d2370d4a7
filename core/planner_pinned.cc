// What blocks of pinned memory take of the host pool: its capacity, its budgets and its shares.
#include <string>
#include <utility>
#include <vector>

#include "core/planner_state.h"
#include "core/size_text.h"

namespace ravenstore::core {

namespace {
// After room was wanted of the other side, it does not take more, or is not asked again, before.
constexpr Duration kPause = std::chrono::milliseconds(100);
}  // namespace

void Planner::State::On(const PinnedHeld& event) {
  if (quota_.SetPinned(event.tenant, event.bytes) <= event.bytes) return;
  EnsureHostAhead(Bytes{0});
  if (std::exchange(away_wanted_, false)) TouchWaiting();
}

void Planner::State::On(const PinnedUsed& event) {
  if (FindClient(event.client) != nullptr) quota_.SetPinned(event.client, event.bytes);
}

void Planner::State::On(const HostShrunk& event) {
  host_.Shrunk({event.offset, event.size});
}

void Planner::State::On(const PinnedWanted& event) {
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
void Planner::State::ShrinkHostFor(Bytes slab) {
  if (host_.IsGrowing()) return;  // what comes goes behind what would leave
  const Bytes pinned = quota_.Of(kHostPool).pinned;
  while (host_.end() + pinned + slab > options_.host_capacity) {
    const auto chunk = host_.Shrink();
    if (!chunk) return;
    plan_->push_back(ShrinkHost{chunk->first, chunk->second});
  }
}

void Planner::State::ReclaimPinnedFor(const TensorRow& tensor) {
  if (quota_.Of(kHostPool).pinned == Bytes{0} || now_ < pinned_asked_until_) return;
  pinned_asked_until_ = now_ + kPause;
  const TenantId id = FindClient(tensor.client)->tenant;
  const bool budget = quota_.Of(id, kHostPool).held + tensor.size > quota_.BudgetsOf(id).host;
  plan_->push_back(ReclaimPinned{budget ? std::optional(id) : std::nullopt});
}

Status Planner::State::MayPin(ClientId id, Bytes block, Bytes slab,
                              const IdlePinned& without) const {
  if (quota_.MayPin(id, block, slab, without.own, without.others, host_.committed())) return Ok();
  return Error{ErrorCode::kOutOfMemory, DescribePinned(id, block)};
}

std::string Planner::State::DescribePinned(ClientId asker, Bytes asked) const {
  std::string text =
      "pinned memory is exhausted: no room for " + SizeText(asked) + " within client " +
      std::to_string(ToInt(asker)) + "'s host budget of " + SizeText(quota_.BudgetsOf(asker).host) +
      ", its user's of " + SizeText(quota_.BudgetsOf(clients_.at(asker)->tenant).host) +
      " and the host pool of " + SizeText(options_.host_capacity) + ", which holds " +
      SizeText(host_.used()) + " of tensors and " + SizeText(quota_.Of(kHostPool).pinned) +
      " of pinned blocks; holders:" + Holders(asker, kHostPool);
  if (!quota_.IsWithinHostShare(asker, asked)) text += HostHolder();
  return text + " free pinned blocks or tensors, or raise the host budgets";
}

}  // namespace ravenstore::core
