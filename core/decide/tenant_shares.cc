#include "core/decide/tenant_shares.h"

#include <algorithm>
#include <tuple>

namespace ravenstore::core::decide {

namespace {

// The demands of a tenant's clients, and their numbers among all.
struct Tenant {
  std::vector<PageDemand> demands;
  std::vector<size_t> numbers;
  uint64_t in_use = 0;  // by all clients
};

// The client whose call that waits is served. clients.size(): none waits.
size_t NextWaiting(std::span<const TenantClient> clients, std::span<const TenantPages> tenants,
                   std::span<const Tenant> of, uint32_t pages, uint32_t for_next) {
  const auto kept = [&](size_t tenant) {
    return std::max<uint64_t>(of[tenant].in_use, tenants[tenant].guarantee);
  };
  uint64_t all = 0;
  bool weighted = false;
  for (size_t tenant = 0; tenant < tenants.size(); ++tenant) {
    all += kept(tenant);
    weighted |= tenants[tenant].weight.has_value();
  }
  const auto rank = [&](const TenantClient& client) {
    const TenantPages& limits = tenants[client.tenant];
    const uint64_t need = of[client.tenant].in_use - client.demand.in_use + client.demand.waits_for;
    const uint64_t surplus = need - std::min<uint64_t>(need, limits.guarantee);
    const uint64_t others = all - kept(client.tenant) + (surplus > 0 ? for_next : 0);
    const bool fits = need <= limits.most && others + need <= pages;
    const double level = weighted ? static_cast<double>(surplus) / limits.weight.value_or(1) : 0;
    return std::tuple(fits, limits.priority, -level);
  };
  size_t found = clients.size();
  for (size_t i = 0; i < clients.size(); ++i) {
    if (clients[i].demand.waits_for == 0) continue;
    if (found == clients.size() || rank(clients[i]) > rank(clients[found])) found = i;
  }
  return found;
}

// The needs of all clients of a tenant.
PageDemand SumOf(const Tenant& tenant, const TenantPages& limits) {
  const auto sum = [&](auto of) {
    uint64_t all = 0;
    for (const PageDemand& demand : tenant.demands) all += of(demand);
    return static_cast<uint32_t>(std::min<uint64_t>(all, limits.most));
  };
  PageDemand whole{
      .in_use = sum([](const PageDemand& of) { return of.in_use; }),
      .expected = sum([](const PageDemand& of) { return of.expected; }),
      .alive = sum([](const PageDemand& of) { return of.alive; }),
      .held = sum([](const PageDemand& of) { return of.held; }),
      .most = limits.most,
      .guarantee = limits.guarantee,
      .priority = limits.priority,
      .weight = limits.weight,
  };
  bool waits = false;
  for (const PageDemand& demand : tenant.demands) {
    whole.has_turn |= demand.has_turn;
    waits |= demand.waits_for > 0;
  }
  if (!waits) return whole;
  whole.waits_for =
      sum([](const PageDemand& of) { return of.waits_for > 0 ? of.waits_for : of.in_use; });
  return whole;
}

}  // namespace

std::vector<uint32_t> ShareByTenant(std::span<const TenantClient> clients,
                                    std::span<const TenantPages> tenants, uint32_t pages,
                                    const KeptPages& free) {
  std::vector<Tenant> of(tenants.size());
  for (const TenantClient& client : clients) of[client.tenant].in_use += client.demand.in_use;
  const size_t waiting = NextWaiting(clients, tenants, of, pages, free.for_next);
  for (size_t i = 0; i < clients.size(); ++i) {
    Tenant& tenant = of[clients[i].tenant];
    tenant.demands.push_back(clients[i].demand);
    if (i != waiting) tenant.demands.back().waits_for = 0;
    tenant.numbers.push_back(i);
  }
  std::vector<PageDemand> wholes;
  for (size_t i = 0; i < tenants.size(); ++i) wholes.push_back(SumOf(of[i], tenants[i]));
  const auto parts = SharePages(wholes, pages, free.all);
  std::vector<uint32_t> shares(clients.size());
  for (size_t i = 0; i < tenants.size(); ++i) {
    const auto own = SharePages(of[i].demands, parts[i]);
    for (size_t k = 0; k < own.size(); ++k) shares[of[i].numbers[k]] = own[k];
  }
  return shares;
}

}  // namespace ravenstore::core::decide
