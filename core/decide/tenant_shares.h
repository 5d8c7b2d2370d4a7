// How many pages of a device each client may hold, where tenants have limits of their own.
//
// Pages are divided between tenants first, each with the needs of all its clients. Then each
// tenant's pages are divided between its clients. Both are by core/decide/page_shares.h. So a
// tenant's limits bound and protect its clients together, however many there are.
//
// Of the clients in which a call waits for room, only one is served. Two that get a part each could
// wait for each other. It is one whose call fits: within what its tenant may hold, and with the
// pages that others' calls hold or that are guaranteed to others. A call that does not fit could
// wait for one that does, and for a later call of that client. Of those that fit, the tenant of the
// highest priority is served first, then the one that would have the least surplus for its weight
// if weights are set, then the first client.
//
// Memory that is lent may not come back: a process that is stopped keeps its pages. So some pages
// stay free, and are lent to no tenant.
//
// Owns: nothing. Units: pages. Threads: any. Errors: none.
// Cost: O((tenants + clients) x log pages).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/decide/page_shares.h"

namespace ravenstore::core::decide {

// Of one tenant on one device.
struct TenantPages {
  uint32_t most = UINT32_MAX;      // that its clients may hold together
  uint32_t guarantee = 0;          // of their needs, before other tenants get more than theirs
  int priority = 0;                // the higher is served first beyond guarantees
  std::optional<double> weight{};  // above 0; not set: 1 where another tenant's is set

  bool operator==(const TenantPages&) const = default;
};

// A client with the number of its tenant.
struct TenantClient {
  PageDemand demand;
  size_t tenant = 0;
};

// Pages that stay free.
struct KeptPages {
  uint32_t all = 0;
  uint32_t for_next = 0;  // of these, for a tenant that is not there yet: no guarantee counts them

  bool operator==(const KeptPages&) const = default;
};

// The share of each client. REQUIRES: tenants are numbered from 0 on.
std::vector<uint32_t> ShareByTenant(std::span<const TenantClient> clients,
                                    std::span<const TenantPages> tenants, uint32_t pages,
                                    const KeptPages& free = {});

}  // namespace ravenstore::core::decide
