// What each client of a device wants of its pages, and sums of that.
//
// A client's part is computed when it is read first after Mark(). So a call of one client costs
// nothing for each of the others.
//
// Owns: the demands. The clients are the owner's and outlive their part. Units: pages. Threads: one
// at a time. Errors: none. Cost: O(log clients) a call, and for each marked client.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/decide/page_shares.h"
#include "core/schedule/device_tenants.h"
#include "core/schedule/scheduled_client.h"
#include "core/types.h"

namespace ravenstore::core {

class DeviceDemands {
 public:
  // `tenants` outlive it.
  explicit DeviceDemands(const DeviceTenants* tenants) : tenants_(*tenants) {}

  // The clients, in the order of demands().
  void SetClients(std::span<ScheduledClient* const> clients);
  // Something of the client has changed. Nothing happens if it is not one of them.
  void Mark(ClientId client);
  // Computes the parts of the marked clients.
  void Refresh();
  // As of the last Refresh():
  std::span<const decide::PageDemand> demands() const { return demands_; }
  // Changes of demands(), and of the clients.
  uint64_t version() const { return version_; }
  // A client's share is less than it could use, or its call waits for room.
  bool AnyLacks() const { return sums_.lacking > 0; }
  bool AnyWaits() const { return sums_.waiting > 0; }
  // All that lived lately has fitted well into this number of pages, and into those that each
  // client and each tenant may hold. O(tenants).
  bool Fit(uint32_t pages) const;

  // Pages of `pages` that the client's calls may hold now, with those of others. O(tenants).
  uint32_t MayHold(const ScheduledClient& client, uint32_t pages);
  // A create in these units finds a place on the device or in the client's pools. Other clients'
  // pages that have no place in theirs are on the device.
  bool HasPlace(const ScheduledClient& client, const plan::UnitSpan& units, uint32_t pages);

 private:
  // Of a client, or of all.
  struct Values {
    uint64_t in_use = 0;
    uint64_t least = 0;
    uint64_t peak = 0;
    uint64_t lacking = 0;
    uint64_t waiting = 0;
    uint64_t over_most = 0;

    // Of these sums, one part is another.
    void Replace(const Values& before, const Values& now);
  };
  struct Part {
    ScheduledClient* client = nullptr;
    uint32_t number = 0;  // in demands_
    bool marked = false;
    Values values;
  };

  const Values& Of(ClientId client) const { return parts_.at(client).values; }

  std::map<ClientId, Part> parts_;
  std::vector<Part*> marked_;
  std::vector<decide::PageDemand> demands_;
  uint64_t version_ = 0;
  Values sums_;
  const DeviceTenants& tenants_;
  std::map<TenantId, Values> of_tenants_;
};

}  // namespace ravenstore::core
