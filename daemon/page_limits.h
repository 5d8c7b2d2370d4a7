// What clients and tenants on pages may hold of each device and of the host pool, by their budgets.
//
// Owns: the budgets, and the counts of copies and pinned memory (core/books/copy_quota.h). Units:
// bytes; pages of each device. Threads: the planner loop. Errors: none. Cost: O(log clients).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "core/books/copy_quota.h"
#include "core/decide/tenant_shares.h"
#include "core/events.h"
#include "core/types.h"

namespace ravenstore::daemon {

class PageLimits {
 public:
  struct Options {
    std::vector<core::Bytes> device_capacity;
    std::vector<core::Bytes> page;  // of each device
    core::Bytes host_capacity;
    // Of each device one in this number is guaranteed to a tenant whose budgets say nothing else,
    // and of the host pool one is kept (core/books/copy_quota.h). 0: nothing is.
    uint64_t guaranteed_part = 0;
  };

  explicit PageLimits(Options options);

  // A tenant without budgets may hold all.
  void SetBudgets(core::TenantId tenant, const core::Budgets& budgets);
  void Attach(core::ClientId client, core::TenantId tenant, const core::Budgets& budgets);
  // REQUIRES, here and below: the client is attached.
  void SetBudgets(core::ClientId client, const core::Budgets& budgets);
  void Detach(core::ClientId client);
  // One that is asleep may hold no page.
  void SetAsleep(core::ClientId client, bool is_asleep) {
    clients_.at(client).is_asleep = is_asleep;
  }
  bool IsAsleep(core::ClientId client) const { return clients_.at(client).is_asleep; }

  // A client of the tenant is attached.
  bool IsPresent(core::TenantId tenant) const;
  // The other tenants with clients. O(clients).
  std::set<core::TenantId> Others(core::TenantId tenant) const;
  core::Budgets BudgetsOf(core::TenantId tenant) const;
  const core::Budgets& BudgetsOf(core::ClientId client) const {
    return clients_.at(client).budgets;
  }
  // The limits of the tenant's clients on the device: one page in any case.
  core::decide::TenantPages PagesOf(core::TenantId tenant, core::DeviceId device) const;
  // Pages of the device that the client may hold by its own budget: one in any case, or none while
  // it is asleep.
  uint32_t MostOf(core::ClientId client, core::DeviceId device) const;
  core::CopyQuota& copies() { return copies_; }
  const core::CopyQuota& copies() const { return copies_; }

 private:
  struct Client {
    core::TenantId tenant{};
    core::Budgets budgets;
    bool is_asleep = false;
  };

  uint32_t PagesIn(core::Bytes bytes, core::DeviceId device) const;

  const Options options_;
  std::map<core::TenantId, core::Budgets> tenants_;
  std::map<core::ClientId, Client> clients_;
  core::CopyQuota copies_;
};

}  // namespace ravenstore::daemon
