// Physical pages of a device that no client owns, and which client gets the next one.
//
// A page that a client releases is destroyed, and another is made for its next owner, one at a
// time. Pages are assigned to the client that has the fewest of its share. Where an exchange uses
// kept room (core/plan/copy_pools.h) clients whose calls wait for bytes that are away are first: a
// page that left for them would be of no use to others. A page may be assigned ahead: before its
// owner has released it.
//
// Owns: the counts. Units: pages. Threads: one at a time. Errors: none. Cost: O(clients) a page.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/execution/page_executor.h"
#include "core/schedule/device_tenants.h"
#include "core/schedule/scheduled_client.h"
#include "core/types.h"

namespace ravenstore::core {

class FreePages {
 public:
  // `pages`: of the device.
  explicit FreePages(uint32_t pages) : pages_(pages), free_(pages), unassigned_(pages) {}

  // The device has that many pages from now on.
  void SetMost(uint32_t pages);
  uint32_t unassigned() const { return unassigned_; }

  // A client owns pages from the beginning. REQUIRES: that many are unassigned.
  void Take(uint32_t pages);
  // A page that a client has released is destroyed.
  void Add();
  // The page that a client is about to release is expected by another client.
  void AssignAhead(PageExecutor* to);
  // The client is gone: the pages that it expects and that are not being made are unassigned.
  void Unassign(const ScheduledClient& client);
  // A client's share has changed, or the limits of a tenant.
  void SharesChanged() { all_have_theirs_ = false; }
  // Assigns unassigned pages, within what each tenant may hold. Returns the client for which the
  // next page is to be made, if one may be made now.
  std::optional<ClientId> Next(std::span<ScheduledClient* const> clients,
                               const DeviceTenants& tenants);
  // That page is made.
  void Made() { making_.reset(); }
  // The client for which a page is being made.
  std::optional<ClientId> making() const { return making_; }

 private:
  void Assign(std::span<ScheduledClient* const> clients, const DeviceTenants& tenants);

  uint32_t pages_;        // of the device
  uint32_t surplus_ = 0;  // of these that clients have to release, and that are not made again
  uint32_t free_;         // that are destroyed, and not made for a client yet
  uint32_t unassigned_;   // of these
  uint32_t ahead_ = 0;    // assigned before they are destroyed
  std::optional<ClientId> making_;
  bool all_have_theirs_ = false;  // no page can be assigned until a share changes
};

}  // namespace ravenstore::core
