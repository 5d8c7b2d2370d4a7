#include "daemon/page_limits.h"

#include <algorithm>
#include <utility>

namespace ravenstore::daemon {

using core::Budgets;
using core::Bytes;
using core::ClientId;
using core::DeviceId;
using core::TenantId;
using core::ToInt;

PageLimits::PageLimits(Options options)
    : options_(std::move(options)),
      copies_({.capacity = options_.host_capacity,
               .kept_part = options_.guaranteed_part,
               .exchange = options_.page.empty()
                               ? Bytes{}
                               : *std::max_element(options_.page.begin(), options_.page.end())}) {}

void PageLimits::SetBudgets(TenantId tenant, const Budgets& budgets) {
  tenants_[tenant] = budgets;
  copies_.SetBudgets(tenant, budgets);
}

void PageLimits::Attach(ClientId client, TenantId tenant, const Budgets& budgets) {
  if (tenants_.count(tenant) == 0) SetBudgets(tenant, BudgetsOf(tenant));
  clients_[client] = {tenant, budgets};
  copies_.Attach(client, tenant, budgets.host);
}

void PageLimits::SetBudgets(ClientId client, const Budgets& budgets) {
  clients_.at(client).budgets = budgets;
  copies_.SetBudget(client, budgets.host);
}

void PageLimits::Detach(ClientId client) {
  clients_.erase(client);
  copies_.Detach(client);
}

bool PageLimits::IsPresent(TenantId tenant) const {
  return std::any_of(clients_.begin(), clients_.end(),
                     [&](const auto& client) { return client.second.tenant == tenant; });
}

std::set<TenantId> PageLimits::Others(TenantId tenant) const {
  std::set<TenantId> others;
  for (const auto& [id, client] : clients_) {
    if (client.tenant != tenant) others.insert(client.tenant);
  }
  return others;
}

Budgets PageLimits::BudgetsOf(TenantId tenant) const {
  const auto found = tenants_.find(tenant);
  if (found != tenants_.end()) return found->second;
  return {.device = Bytes(UINT64_MAX), .host = Bytes(UINT64_MAX)};
}

uint32_t PageLimits::PagesIn(Bytes bytes, DeviceId device) const {
  return static_cast<uint32_t>(
      std::min<uint64_t>(bytes.count() / options_.page[ToInt(device)].count(), UINT32_MAX));
}

core::decide::TenantPages PageLimits::PagesOf(TenantId tenant, DeviceId device) const {
  const Budgets budgets = BudgetsOf(tenant);
  const Bytes all = options_.device_capacity[ToInt(device)];
  const uint64_t part = options_.guaranteed_part;
  const Bytes unless_set = part == 0 ? Bytes{} : Bytes(all.count() / part);
  core::decide::TenantPages pages{
      .most = std::max(PagesIn(budgets.device, device), 1U),
      .guarantee = PagesIn(std::min(budgets.device_guarantee.value_or(unless_set), all), device),
      .priority =
          static_cast<int>(budgets.priority) - static_cast<int>(core::TenantPriority::kNormal)};
  if (budgets.weight) pages.weight = *budgets.weight;
  return pages;
}

uint32_t PageLimits::MostOf(ClientId client, DeviceId device) const {
  const Client& of = clients_.at(client);
  return of.is_asleep ? 0 : std::max(PagesIn(of.budgets.device, device), 1U);
}

}  // namespace ravenstore::daemon
