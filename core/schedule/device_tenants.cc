#include "core/schedule/device_tenants.h"

#include <algorithm>

namespace ravenstore::core {

namespace {
// As core/quota_tree.cc has it for slabs (decision 0026).
constexpr uint32_t kKeptPart = 64;
}  // namespace

void DeviceTenants::Set(TenantId tenant, const decide::TenantPages& limits) {
  decide::TenantPages& of = tenants_[tenant];
  guaranteed_ += limits.guarantee;
  guaranteed_ -= of.guarantee;
  changed_ |= of != limits;
  of = limits;
}

void DeviceTenants::Remove(TenantId tenant) {
  Set(tenant, {});
  tenants_.erase(tenant);
}

decide::TenantPages DeviceTenants::Of(TenantId tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? decide::TenantPages{} : found->second;
}

uint32_t DeviceTenants::GuaranteeOf(TenantId tenant, uint32_t pages) const {
  const uint64_t own = Of(tenant).guarantee;
  return static_cast<uint32_t>(guaranteed_ <= pages ? own : own * pages / guaranteed_);
}

uint32_t DeviceTenants::Most(const ScheduledClient& client, uint32_t pages) const {
  return std::min({pages, client.most(), Of(client.tenant()).most});
}

uint32_t DeviceTenants::MostExceptKept(const ScheduledClient& client, uint32_t pages) const {
  const uint32_t most = Most(client, pages);
  if (!KeepsFree()) return most;
  const TenantId tenant = client.tenant();
  const uint32_t lent = pages - Kept({{tenant, UINT64_MAX}}, pages).all;
  return std::min(most, std::max(lent, GuaranteeOf(tenant, pages)));
}

uint32_t DeviceTenants::KeptForNext(uint32_t pages) const {
  return KeepsFree() ? std::min(pages / kKeptPart, pages / guaranteed_part_) : 0;
}

decide::KeptPages DeviceTenants::Kept(const std::map<TenantId, uint64_t>& needed,
                                      uint32_t pages) const {
  if (!KeepsFree()) return {};
  const uint32_t each = pages / kKeptPart;
  uint64_t all = each;
  for (const auto& [id, limits] : tenants_) {
    const uint32_t part = std::min(each, GuaranteeOf(id, pages));
    const auto needs = needed.find(id);
    if (needs == needed.end()) {
      all += part;
    } else {
      all += part - std::min<uint64_t>(part, needs->second);
    }
  }
  return {.all = static_cast<uint32_t>(std::min<uint64_t>(all, pages / guaranteed_part_)),
          .for_next = KeptForNext(pages)};
}

uint64_t DeviceTenants::PagesOf(TenantId tenant, Clients clients) {
  uint64_t has = 0;
  for (const ScheduledClient* other : clients) {
    const PageMemory& memory = other->executor().books().memory();
    if (other->tenant() == tenant) has += memory.pages() + memory.expected() + memory.releasing();
  }
  return has;
}

uint32_t DeviceTenants::Growth(TenantId tenant, Clients clients) const {
  const uint64_t most = Of(tenant).most;
  const uint64_t has = PagesOf(tenant, clients);
  return static_cast<uint32_t>(has < most ? most - has : 0);
}

bool DeviceTenants::HasItsShares(TenantId tenant, Clients clients) const {
  uint64_t shares = 0;
  for (const ScheduledClient* other : clients) {
    if (other->tenant() == tenant) shares += other->executor().books().view().limits.pages;
  }
  return PagesOf(tenant, clients) >= shares;
}

bool DeviceTenants::AreLimited(Clients clients, uint32_t pages) const {
  if (KeepsFree()) return true;
  bool several = false;
  bool claims = false;
  for (const ScheduledClient* client : clients) {
    if (Most(*client, pages) < pages) return true;
    const decide::TenantPages& of = Of(client->tenant());
    several |= client->tenant() != clients.front()->tenant();
    claims |= of.guarantee > 0 || of.priority != 0 || of.weight.has_value();
  }
  return several && claims;
}

std::vector<uint32_t> DeviceTenants::Share(std::span<const decide::PageDemand> demands,
                                           Clients clients, uint32_t pages) const {
  std::map<TenantId, size_t> numbers;
  std::vector<decide::TenantPages> tenants;
  std::vector<decide::TenantClient> all;
  std::map<TenantId, uint64_t> needed;
  for (size_t i = 0; i < clients.size(); ++i) {
    const TenantId tenant = clients[i]->tenant();
    const auto [number, is_new] = numbers.try_emplace(tenant, tenants.size());
    if (is_new) {
      tenants.push_back(Of(tenant));
      tenants.back().guarantee = GuaranteeOf(tenant, pages);
    }
    all.push_back({demands[i], number->second});
    needed[tenant] += demands[i].needed();
  }
  // Of a tenant without a client here, the guarantee is kept from calls alone.
  for (const auto& [id, limits] : tenants_) {
    if (numbers.count(id) == 0) tenants.push_back({.most = 0, .guarantee = GuaranteeOf(id, pages)});
  }
  return decide::ShareByTenant(all, tenants, pages, Kept(needed, pages));
}

}  // namespace ravenstore::core
