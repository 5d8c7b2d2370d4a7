// The tenants of a device: what their clients may hold together, and what others leave them.
//
// A tenant's guarantee counts while it is there, with or without a client on this device: calls of
// other tenants do not hold those pages, since pages that calls hold cannot be taken back. Pages
// that no call holds are lent until their owner needs them (core/decide/tenant_shares.h). Where the
// guarantees are more than the device, each is reduced in proportion.
//
// While several tenants are there, and something is guaranteed, some pages stay free: a 64th of the
// device for each tenant that needs less than that and is guaranteed it, and one for a tenant to
// come; at most one page in `guaranteed_part`. Only what a tenant needs of its guarantee may use
// these pages.
//
// Owns: the tenants' limits. Units: pages. Threads: one at a time. Errors: none. Cost: O(log
// tenants) a question, but where it says so.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/decide/page_shares.h"
#include "core/decide/tenant_shares.h"
#include "core/schedule/scheduled_client.h"
#include "core/types.h"

namespace ravenstore::core {

class DeviceTenants {
 public:
  using Clients = std::span<ScheduledClient* const>;

  // `guaranteed_part`: 0: no page stays free.
  explicit DeviceTenants(uint32_t guaranteed_part = 0) : guaranteed_part_(guaranteed_part) {}

  // ---- Tenants. One that has no limits may hold all, and nothing is guaranteed to it.
  void Set(TenantId tenant, const decide::TenantPages& limits);
  // No client of the tenant is there any more.
  void Remove(TenantId tenant);
  // Since the last time, limits have become others.
  bool TakeChanged() { return std::exchange(changed_, false); }

  // ---- `pages`: of the device. `clients`: all that are there.
  decide::TenantPages Of(TenantId tenant) const;
  // Pages that are guaranteed to the tenant.
  uint32_t GuaranteeOf(TenantId tenant, uint32_t pages) const;
  // Pages that the client may hold if no other client holds any.
  uint32_t Most(const ScheduledClient& client, uint32_t pages) const;
  // Without those that stay free. O(tenants).
  uint32_t MostExceptKept(const ScheduledClient& client, uint32_t pages) const;
  // Some pages stay free.
  bool KeepsFree() const { return guaranteed_part_ > 0 && tenants_.size() > 1 && guaranteed_ > 0; }
  // Pages that stay free for a tenant to come.
  uint32_t KeptForNext(uint32_t pages) const;
  // Guarantees of tenants other than this one that are not among `present`, by tenant. O(tenants).
  template <typename Present>
  uint64_t KeptForAbsent(TenantId tenant, const Present& present, uint32_t pages) const {
    uint64_t kept = 0;
    for (const auto& [id, limits] : tenants_) {
      if (id != tenant && present.count(id) == 0) kept += GuaranteeOf(id, pages);
    }
    return kept;
  }
  // Pages that may be made for the tenant's clients until they have all that they may hold.
  // O(clients).
  uint32_t Growth(TenantId tenant, Clients clients) const;
  // The tenant's clients together have all pages of their shares: one of them may have more than
  // its share. O(clients).
  bool HasItsShares(TenantId tenant, Clients clients) const;
  // Some client may not use all of the device for its calls: a plan for all does not know that.
  // O(clients).
  bool AreLimited(Clients clients, uint32_t pages) const;
  // The share of each client. `demands`: by client.
  std::vector<uint32_t> Share(std::span<const decide::PageDemand> demands, Clients clients,
                              uint32_t pages) const;

 private:
  // `needed`: by tenant with clients here.
  decide::KeptPages Kept(const std::map<TenantId, uint64_t>& needed, uint32_t pages) const;
  // That the tenant's clients have, with those that they expect.
  static uint64_t PagesOf(TenantId tenant, Clients clients);

  const uint32_t guaranteed_part_;
  std::map<TenantId, decide::TenantPages> tenants_;
  uint64_t guaranteed_ = 0;  // to all of them
  bool changed_ = false;
};

}  // namespace ravenstore::core
