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
  Tenant& tenant = tenants_[event.tenant];
  const bool less = event.bytes < tenant.pinned;
  pinned_ -= tenant.pinned;
  pinned_ += event.bytes;
  tenant.pinned = event.bytes;
  if (!less) return;
  EnsureHostAhead(Bytes{0});
  if (std::exchange(host_wanted_, false)) TouchWaiting();
}

void Planner::State::On(const PinnedUsed& event) {
  if (Client* client = FindClient(event.client)) client->pinned = event.bytes;
}

void Planner::State::On(const HostShrunk& event) {
  host_.RemoveChunk(event.offset, event.size);
  host_leaving_ -= event.size;
}

void Planner::State::On(const PinnedWanted& event) {
  Client* client = FindClient(event.client);
  if (client == nullptr || event.slab > options_.host_capacity) return;
  pinned_wanted_until_ = now_ + kPause;
  if (!MakeHostBudget(*client, Bytes{0}, event.slab, RedundantCopies::kMayDrop)) return;
  if (!MakeHostShare(*client, event.slab, RedundantCopies::kMayDrop)) return;
  const auto missing = [&] {
    return Minus(host_.used() + pinned_ + event.slab, options_.host_capacity);
  };
  for (auto other = clients_.begin(); other != clients_.end() && missing() > Bytes{0}; ++other) {
    if (MayDropCopiesOf(*other->second, *client)) DropRedundantCopies(*other->second, missing());
  }
  ShrinkHostFor(event.slab);
}

// What the pool has pinned and nothing lives in is as good as any: it is unpinned from the end.
void Planner::State::ShrinkHostFor(Bytes slab) {
  if (host_growing_) return;  // what comes goes behind what would leave
  while (host_end_ + host_coming_ + pinned_ + slab > options_.host_capacity) {
    if (host_chunks_.empty()) return;
    const Bytes offset = host_chunks_.back();
    const Bytes size = host_end_ - offset;
    if (!host_.IsFree(offset, size)) return;
    host_.CloseChunk(offset, size);
    host_chunks_.pop_back();
    host_end_ = offset;
    host_leaving_ += size;
    plan_->push_back(ShrinkHost{offset, size});
  }
}

void Planner::State::ReclaimPinnedFor(const TensorRow& tensor) {
  if (pinned_ == Bytes{0} || now_ < pinned_asked_until_) return;
  pinned_asked_until_ = now_ + kPause;
  const TenantId id = FindClient(tensor.client)->tenant;
  const Tenant& tenant = tenants_.at(id);
  const bool budget = tenant.host_used + tenant.pinned + tensor.size > tenant.budgets.host;
  plan_->push_back(ReclaimPinned{budget ? std::optional(id) : std::nullopt});
}

Status Planner::State::MayPin(ClientId id, Bytes block, Bytes slab,
                              const IdlePinned& without) const {
  const Client& client = *clients_.at(id);
  const Tenant& tenant = tenants_.at(client.tenant);
  const Bytes pool = host_end_ + host_coming_ + host_leaving_;
  const Bytes held = tenant.host_used + Minus(tenant.pinned, without.own);
  const Bytes pinned = Minus(pinned_, without.own + without.others);
  const bool fits = block <= Minus(client.budgets.host, client.host_used + client.pinned) &&
                    slab <= Minus(tenant.budgets.host, held) &&
                    slab <= Minus(options_.host_capacity, pool + pinned) &&
                    IsWithinHostShare(host_.used() + pinned, held, slab);
  if (fits) return Ok();
  return Error{ErrorCode::kOutOfMemory, DescribePinned(client, block)};
}

// The asker's own tenant is told which of its clients hold what, and of other tenants which.
std::string Planner::State::DescribePinned(const Client& asker, Bytes asked) const {
  std::vector<std::pair<ClientId, Bytes>> own;
  for (const auto& [id, client] : clients_) {
    if (client->tenant == asker.tenant && client->pinned > Bytes{0})
      own.emplace_back(id, client->pinned);
  }
  std::vector<std::pair<TenantId, Bytes>> others;
  for (const auto& [id, tenant] : tenants_) {
    if (id != asker.tenant && tenant.pinned > Bytes{0}) others.emplace_back(id, tenant.pinned);
  }
  const Tenant& tenant = tenants_.at(asker.tenant);
  std::string text = "pinned memory is exhausted: no room for " + SizeText(asked) +
                     " within client " + std::to_string(ToInt(asker.id)) + "'s host budget of " +
                     SizeText(asker.budgets.host) + ", its user's of " +
                     SizeText(tenant.budgets.host) + " and the host pool of " +
                     SizeText(options_.host_capacity) + ", which holds " + SizeText(host_.used()) +
                     " of tensors and " + SizeText(pinned_) + " of pinned blocks; holders:";
  const size_t own_more = KeepLargest(&own);
  for (const auto& [id, held] : own)
    text += " client " + std::to_string(ToInt(id)) + " holds " + SizeText(held) + " pinned;";
  if (own_more > 0) text += " " + std::to_string(own_more) + " more of this user;";
  const size_t others_more = KeepLargest(&others);
  for (const auto& [id, held] : others)
    text += " user " + std::to_string(ToInt(id)) + " holds " + SizeText(held) + " pinned;";
  if (others_more > 0) text += " " + std::to_string(others_more) + " more users;";
  if (!IsWithinHostShare(tenant, asked)) text += HostHolder();
  return text + " free pinned blocks or tensors, or raise the host budgets";
}

}  // namespace ravenstore::core
