// The limits of a pool for copies: clients and tenants hold at most their budgets, and all of them
// at most the pool.
//
// Copies are bytes that cannot be taken back, so a part of the pool is kept for tenants that hold
// little of it (docs/decisions/0026). A redundant copy can be dropped for another: of the asker's
// own tenant in any case, of others only where they hold more than the kept part.
//
// Blocks of pinned memory count in the host pool: of a client its blocks, of a tenant the slabs
// that these are cut from.
//
// Owns: the budgets and counts; neither copies nor memory. Units: bytes. Threads: one at a time.
// Errors: none. Cost: O(log clients) a call; O(tenants) where it says so.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/events.h"
#include "core/types.h"

namespace ravenstore::core {

class CopyQuota {
 public:
  struct Options {
    Bytes capacity;
    uint64_t kept_part = 0;  // one in this number is kept; 0: nothing is
    Bytes exchange{};        // the most that one copy takes
  };
  // Idle slabs of pinned memory, which can be released.
  struct Idle {
    Bytes own;  // of the asker's tenant
    Bytes others;
  };

  explicit CopyQuota(const Options& options) : options_(options) {}

  // ---- Limits. Of `budgets` those of the host pool.
  void SetBudgets(TenantId tenant, const Budgets& budgets) { tenants_[tenant].budgets = budgets; }
  void Attach(ClientId client, TenantId tenant, Bytes budget);
  // REQUIRES, here and below: the client is attached.
  void SetBudget(ClientId client, Bytes budget) { clients_.at(client).budget = budget; }
  void Detach(ClientId client);

  // ---- Counts.
  // The bytes of the client's copies of that device's pages. Returns true if they are fewer than
  // before.
  bool SetCopies(ClientId client, DeviceId device, Bytes bytes);
  void SetPinned(ClientId client, Bytes blocks) { clients_.at(client).pinned = blocks; }
  void SetPinned(TenantId tenant, Bytes slabs);
  Bytes pinned() const { return pinned_; }
  // Room that a tenant with copies keeps for exchanges, and so do all: of a copy that leaves for
  // another to come back.
  Bytes exchange() const { return options_.exchange; }

  // ---- Questions.
  enum class Limit : uint8_t { kClient, kTenant, kPool };
  // Copies that the client may have if nothing else is held.
  Bytes Most(ClientId client) const;
  // More copies that the client may have, by one limit or by all.
  Bytes Room(ClientId client, Limit limit) const;
  Bytes Room(ClientId client) const;
  // Whether the client may have a block, for which a slab is made unless `slab` is zero. Copies
  // have `made` bytes of memory, which is not released.
  bool MayPin(ClientId client, Bytes block, Bytes slab, const Idle& idle, Bytes made) const;
  // The client's part of the pool is the rest: the others' part is kept.
  bool IsReservedForOthers(ClientId client, Bytes more) const;
  // The tenant that holds the most. O(tenants).
  TenantId LargestHolder() const;
  // A redundant copy of `holder` may make room for `asker`, which has reached this limit.
  bool MayDrop(ClientId holder, ClientId asker, Limit binds) const;
  // Of redundant copies, those of the lesser rank are dropped first: the asker's own, those of its
  // tenant, of a lower priority, of a tenant that holds more for its weight.
  using Rank = std::pair<int, double>;
  Rank RankOf(ClientId holder, ClientId asker) const;

 private:
  struct Tenant {
    Budgets budgets;
    Bytes copies;
    Bytes pinned;

    Bytes held() const { return copies + pinned; }
  };
  struct Client {
    TenantId tenant{};
    Bytes budget;
    Bytes pinned;
    std::map<DeviceId, Bytes> copies;
    Bytes all_copies;
  };

  Tenant& TenantOf(const Client& client) { return tenants_.at(client.tenant); }
  const Tenant& TenantOf(const Client& client) const { return tenants_.at(client.tenant); }
  Bytes Kept() const {
    return options_.kept_part == 0 ? Bytes{}
                                   : Bytes(options_.capacity.count() / options_.kept_part);
  }
  // Bytes that the tenant may still hold without the part that is kept for others.
  Bytes Unreserved(Bytes all, Bytes of_tenant) const;

  const Options options_;
  std::map<TenantId, Tenant> tenants_;
  std::map<ClientId, Client> clients_;
  Bytes copies_;  // of all
  Bytes pinned_;
};

}  // namespace ravenstore::core
