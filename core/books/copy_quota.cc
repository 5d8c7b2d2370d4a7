#include "core/books/copy_quota.h"

#include <algorithm>

namespace ravenstore::core {

void CopyQuota::Attach(ClientId client, TenantId tenant, Bytes budget) {
  tenants_.try_emplace(tenant);
  clients_[client] = {
      .tenant = tenant, .budget = budget, .pinned = {}, .copies = {}, .all_copies = {}};
}

void CopyQuota::Detach(ClientId client) {
  const Client& removed = clients_.at(client);
  TenantOf(removed).copies -= removed.all_copies;
  copies_ -= removed.all_copies;
  clients_.erase(client);
}

bool CopyQuota::SetCopies(ClientId client, DeviceId device, Bytes bytes) {
  Client& of = clients_.at(client);
  const Bytes before = std::exchange(of.copies[device], bytes);
  for (Bytes* const sum : {&of.all_copies, &TenantOf(of).copies, &copies_}) {
    *sum += bytes;
    *sum -= before;
  }
  return bytes < before;
}

void CopyQuota::SetPinned(TenantId tenant, Bytes slabs) {
  pinned_ -= std::exchange(tenants_[tenant].pinned, slabs);
  pinned_ += slabs;
}

Bytes CopyQuota::Unreserved(Bytes all, Bytes of_tenant) const {
  if (options_.kept_part == 0) return Bytes(UINT64_MAX);
  return std::max(Minus(options_.capacity - Kept(), all),
                  Minus(Bytes(Kept().count() / options_.kept_part), of_tenant));
}

Bytes CopyQuota::Most(ClientId client) const {
  const Client& of = clients_.at(client);
  return std::min({of.budget, TenantOf(of).budgets.host, options_.capacity - Kept()});
}

Bytes CopyQuota::Room(ClientId client, Limit limit) const {
  const Client& of = clients_.at(client);
  const Tenant& tenant = TenantOf(of);
  const Bytes all = copies_ + pinned_;
  switch (limit) {
    case Limit::kClient: return Minus(of.budget, of.all_copies + of.pinned);
    case Limit::kTenant: return Minus(tenant.budgets.host, tenant.held());
    case Limit::kPool: break;
  }
  return std::min(Minus(options_.capacity, all), Unreserved(all, tenant.held()));
}

Bytes CopyQuota::Room(ClientId client) const {
  return std::min(
      {Room(client, Limit::kClient), Room(client, Limit::kTenant), Room(client, Limit::kPool)});
}

bool CopyQuota::MayPin(ClientId client, Bytes block, Bytes slab, const Idle& idle,
                       Bytes made) const {
  const Client& of = clients_.at(client);
  const Tenant& tenant = TenantOf(of);
  const Bytes held = tenant.held() - std::min(tenant.pinned, idle.own);
  const Bytes pinned = Minus(pinned_, idle.own + idle.others);
  const Bytes needs = slab + (tenant.copies > Bytes{} ? options_.exchange : Bytes{});
  return block <= Room(client, Limit::kClient) && needs <= Minus(tenant.budgets.host, held) &&
         slab <= Minus(options_.capacity, made + pinned) &&
         needs <= Unreserved(copies_ + pinned, held);
}

bool CopyQuota::IsReservedForOthers(ClientId client, Bytes more) const {
  return Unreserved(copies_ + pinned_, TenantOf(clients_.at(client)).held()) < more;
}

TenantId CopyQuota::LargestHolder() const {
  return std::max_element(
             tenants_.begin(), tenants_.end(),
             [](const auto& a, const auto& b) { return a.second.held() < b.second.held(); })
      ->first;
}

bool CopyQuota::MayDrop(ClientId holder, ClientId asker, Limit binds) const {
  if (holder == asker) return true;
  if (binds == Limit::kClient) return false;
  const Client& of = clients_.at(holder);
  if (of.tenant == clients_.at(asker).tenant) return true;
  return binds == Limit::kPool && (options_.kept_part == 0 || TenantOf(of).held() > Kept());
}

CopyQuota::Rank CopyQuota::RankOf(ClientId holder, ClientId asker) const {
  if (holder == asker) return {-2, 0};
  const Client& of = clients_.at(holder);
  if (of.tenant == clients_.at(asker).tenant) return {-1, 0};
  const Tenant& tenant = TenantOf(of);
  return {static_cast<int>(tenant.budgets.priority),
          -static_cast<double>(tenant.held().count()) / tenant.budgets.weight.value_or(1)};
}

}  // namespace ravenstore::core
