// What the planner tells of its books, and what must hold of them.
#include <algorithm>

#include "core/check.h"
#include "core/planner_state.h"

namespace ravenstore::core {

TensorId Planner::State::Find(ClientId client, SlotId slot) const {
  const auto found = clients_.find(client);
  if (found == clients_.end() || ToInt(slot) >= found->second->slots.size()) return kNoTensor;
  const uint32_t row = found->second->slots[ToInt(slot)];
  return row == kNoRow ? kNoTensor : catalog_[row].id;
}

uint32_t Planner::State::SlotsOf(ClientId client) const {
  return static_cast<uint32_t>(clients_.at(client)->slots.size());
}

const TensorRow* Planner::State::Find(TensorId id) const {
  const TensorRow* tensor = catalog_.Find(id);
  return tensor == nullptr || !clients_.contains(tensor->client) ? nullptr : tensor;
}

TensorView Planner::State::ViewOf(const TensorRow& tensor) const {
  TensorView view{tensor.id,     tensor.client,  tensor.slot,   tensor.name,
                  tensor.size,   tensor.device,  Bytes{0},      tensor.residency,
                  tensor.in_use, tensor.dirty(), tensor.on_host};
  if (tensor.device_block != ExtentMap::kNone) {
    view.device_offset =
        clients_.at(tensor.client)->arenas[ToInt(tensor.device)]->map.OffsetOf(tensor.device_block);
  }
  return view;
}

ClientView Planner::State::ViewOf(ClientId id) const {
  const Client& client = *clients_.at(id);
  ClientView view;
  view.client = id;
  view.tenant = client.tenant;
  view.budgets = client.budgets;
  view.tensors = client.tensors;
  view.host_used = client.host_used;
  view.pinned = client.pinned;
  view.in_use = client.in_use;
  view.waiting = client.stats.waiting;
  for (const auto& arena : client.arenas) {
    if (arena == nullptr) continue;
    view.device_held += arena->charged;
    view.device_used += arena->map.used();
  }
  return view;
}

std::vector<ClientId> Planner::State::Clients() const {
  std::vector<ClientId> ids;
  for (const auto& [id, client] : clients_) ids.push_back(id);
  return ids;
}

TierView Planner::State::DeviceTier(DeviceId device) const {
  TierView view{devices_[ToInt(device)].limit, devices_[ToInt(device)].held, Bytes{0}};
  for (const auto& [id, client] : clients_) {
    const auto& arena = client->arenas[ToInt(device)];
    if (arena != nullptr) view.used += arena->map.used();
  }
  return view;
}

Bytes Planner::State::Guaranteed(DeviceId device, TenantId asker) const {
  Bytes guaranteed;
  for (const auto& [id, tenant] : tenants_) {
    if (tenant.clients == 0 || id == asker) continue;
    guaranteed += std::min(tenant.device_held[ToInt(device)], GuaranteeOf(tenant, device));
  }
  return guaranteed;
}

TierView Planner::State::HostTier() const {
  Bytes blocks;
  for (const auto& [id, client] : clients_) blocks += client->pinned;
  return {options_.host_capacity, host_.held() + host_leaving_ + pinned_, host_.used() + blocks};
}

Tick Planner::State::NextWake() const {
  return std::min(
      {next_poll_, requests_.NextDeadline(), wakes_.Next(), late_.Next(), overdue_.Next()});
}

bool Planner::State::IsToBeForgotten(const TensorRow& tensor) const {
  return std::any_of(gone_.begin(), gone_.end(), [&](const auto& client) {
    return client->id == tensor.client && ToInt(tensor.slot) < client->slots.size() &&
           client->slots[ToInt(tensor.slot)] == Catalog::RowOf(tensor.id);
  });
}

// Checks one row against everything that is recorded elsewhere; adds it to `sums`.
void Planner::State::CheckRow(uint32_t row, Sums* sums) const {
  const TensorRow& tensor = catalog_[row];
  if (tensor.id == kNoTensor) return;
  if (tensor.host_block != ExtentMap::kNone) {
    RAVEN_CHECK(host_.OwnerOf(tensor.host_block) == row);
    RAVEN_CHECK(host_.SizeOf(tensor.host_block) >= tensor.size);
    sums->host += host_.SizeOf(tensor.host_block);
  }
  if (tensor.on_host) RAVEN_CHECK(tensor.host_block != ExtentMap::kNone);
  if (!clients_.contains(tensor.client)) {
    RAVEN_CHECK(tensor.copying || IsToBeForgotten(tensor));
    return;
  }
  const auto arena_key = std::pair(tensor.client, tensor.device);
  sums->live[arena_key] += tensor.size;
  ++sums->tensors[tensor.client];
  sums->waits[tensor.client] += tensor.residency == Residency::kArriving && !tensor.prefetched;
  if (tensor.in_use) sums->in_use[tensor.client] += tensor.size;
  if (tensor.pinned) sums->pinned[arena_key] += tensor.size;
  if (tensor.host_block != ExtentMap::kNone) sums->host_used[tensor.client] += tensor.size;
  RAVEN_CHECK(Find(tensor.client, tensor.slot) == tensor.id);
  const bool has_device = tensor.device_block != ExtentMap::kNone;
  RAVEN_CHECK(tensor.pinned == (has_device && (tensor.in_use || !tensor.stream_complete)));
  const bool away = tensor.residency == Residency::kAway || tensor.residency == Residency::kLost;
  RAVEN_CHECK(has_device == !away);
  if (has_device) {
    const ClientArena& arena = *clients_.at(tensor.client)->arenas[ToInt(tensor.device)];
    RAVEN_CHECK(arena.map.OwnerOf(tensor.device_block) == row);
    const Bytes room = arena.map.SizeOf(tensor.device_block);
    const Bytes whole = tensor.size.RoundUp(kExtentAlignment);
    RAVEN_CHECK(tensor.residency == Residency::kLeavingIrrevocably ? room <= whole : room == whole);
  }
  if (tensor.residency == Residency::kAway)
    RAVEN_CHECK(tensor.discarded != (tensor.on_host && !tensor.dirty()));
  RAVEN_CHECK(EvictionIndex::Contains(tensor) == Evictable(tensor));
  if (EvictionIndex::Contains(tensor)) ++sums->indexed[arena_key];
  if (tensor.listed) {
    RAVEN_CHECK(tensor.residency == Residency::kAway);
    ++sums->listed[arena_key];
  }
}

void Planner::State::CheckTenants() const {
  std::map<TenantId, uint32_t> clients;
  for (const auto& [id, client] : clients_) ++clients[client->tenant];
  for (const auto& [id, tenant] : tenants_) RAVEN_CHECK(clients[id] == tenant.clients);
  for (size_t i = 0; i < devices_.size(); ++i) {
    Bytes guaranteed;
    std::map<TenantId, Bytes> pinned;
    for (const auto& [id, tenant] : tenants_)
      guaranteed += tenant.clients > 0 ? tenant.device_guarantee[i] : Bytes{0};
    for (const auto& [id, client] : clients_) {
      if (client->arenas[i] != nullptr) pinned[client->tenant] += client->arenas[i]->pinned;
    }
    RAVEN_CHECK(devices_[i].guaranteed == guaranteed);
    for (const auto& [id, tenant] : tenants_) RAVEN_CHECK(tenant.device_pinned[i] == pinned[id]);
  }
}

void Planner::State::CheckInvariants() const {
  CheckTenants();
  host_.CheckInvariants();
  requests_.CheckInvariants();
  Sums sums;
  for (uint32_t row = 0; row < catalog_.rows(); ++row) CheckRow(row, &sums);
  RAVEN_CHECK(sums.host == host_.used());
  Bytes pinned;
  for (const auto& [id, tenant] : tenants_) pinned += tenant.pinned;
  RAVEN_CHECK(pinned == pinned_);
  RAVEN_CHECK(host_.held() == host_end_);
  for (const auto& [id, request] : requests_.all()) ++sums.waits[request.client];
  std::vector<Bytes> held(devices_.size());
  std::vector<uint32_t> allocating(devices_.size());
  std::map<std::pair<TenantId, DeviceId>, Bytes> reclaiming;
  for (const auto& [id, client] : clients_) {
    RAVEN_CHECK(client->in_use == sums.in_use[id]);
    RAVEN_CHECK(client->host_used == sums.host_used[id]);
    RAVEN_CHECK(client->tensors == sums.tensors[id]);
    RAVEN_CHECK(client->waits == sums.waits[id]);
    for (const auto& arena : client->arenas) {
      if (arena == nullptr) continue;
      arena->map.CheckInvariants();
      RAVEN_CHECK(arena->copying_out <= arena->leaving);
      RAVEN_CHECK(arena->leaving_slabs <= arena->leaving);
      Bytes removing;
      for (const auto& [offset, slab] : arena->removing) removing += slab.size;
      RAVEN_CHECK(removing == arena->being_removed + arena->overdue);
      RAVEN_CHECK(std::count(touched_.begin(), touched_.end(), arena.get()) ==
                  (arena->touched ? 1 : 0));
      reclaiming[std::pair(client->tenant, arena->device)] +=
          arena->being_removed + arena->Draining();
      RAVEN_CHECK(arena->map.held() <= arena->charged);
      RAVEN_CHECK(arena->live == sums.live[std::pair(id, arena->device)]);
      RAVEN_CHECK(arena->pinned == sums.pinned[std::pair(id, arena->device)]);
      RAVEN_CHECK(arena->index.size() == sums.indexed[std::pair(id, arena->device)]);
      RAVEN_CHECK(arena->due_at.size() + arena->due_order.size() + arena->due_learned.size() ==
                  sums.listed[std::pair(id, arena->device)]);
      RAVEN_CHECK(!arena->waits_for_peak || requests_.Waiting(*arena) > 0);
      held[ToInt(arena->device)] += arena->charged;
      allocating[ToInt(arena->device)] += arena->allocation_phase ? 1 : 0;
    }
  }
  for (const auto& [id, line] : requests_.lines()) RAVEN_CHECK(clients_.contains(id.client));
  RAVEN_CHECK(requests_.all().size() == stats_.waiting);
  for (size_t i = 0; i < devices_.size(); ++i) {
    Bytes all_reclaiming;
    for (const auto& [id, tenant] : tenants_) {
      all_reclaiming += tenant.device_reclaiming[i];
      RAVEN_CHECK(
          (tenant.device_reclaiming[i] == reclaiming[{id, DeviceId{static_cast<uint16_t>(i)}}]));
    }
    RAVEN_CHECK(devices_[i].reclaiming == all_reclaiming);
    RAVEN_CHECK(devices_[i].held == held[i]);
    RAVEN_CHECK(devices_[i].allocating == allocating[i]);
    RAVEN_CHECK(devices_[i].held <= options_.device_capacity[i]);
  }
}

}  // namespace ravenstore::core
