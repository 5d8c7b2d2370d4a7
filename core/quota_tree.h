// Who may hold how much of each pool of memory: a client within its budget, all clients of a tenant
// within the tenant's, and all tenants within what the pool has, of which each may be guaranteed a
// part (docs/decisions/0023, 0026).
//
// What a tenant holds beyond its guarantee is its surplus. It makes way for tenants of a higher
// priority and, where a weight is set for any of those present, for tenants of the same priority
// that have less surplus for their weight (docs/decisions/0047).
//
// A device's memory can be taken back slab by slab, so what a tenant is guaranteed there and does
// not hold is lent to others. The host pool's cannot: a part of it is kept for tenants that hold
// little of it, by the rule of core/share.h. Of any other pool nothing is guaranteed or kept.
//
// Owns: budgets, limits, reservations and the counts of what is held; never the memory.
// Threads: one at a time. Cost: O(log clients); O(tenants), too, where it says so.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/events.h"
#include "core/types.h"

namespace ravenstore::core {

class QuotaTree {
 public:
  struct Options {
    std::vector<Bytes> devices;   // the capacity of each
    Bytes host;                   // of the host pool
    std::vector<Bytes> others{};  // of the pools that follow the devices
    Bytes granularity;            // of slabs
    // Of each pool this part is guaranteed, or kept: 8 means an eighth. 0: nothing is, but for the
    // guarantees that tenants' budgets name.
    uint64_t guaranteed_part = 0;
  };

  // Of one client, one tenant or all of them, in one pool.
  struct Usage {
    Bytes held;
    Bytes reclaiming;  // of that, slabs that are being emptied or given back
    Bytes overdue;     // of that, slabs that were to be given back and were not in time
    // What cannot leave. On a device: tensors in use or not stream-complete. In the host pool:
    // pinned memory, of a client its blocks, else the slabs that these are cut from.
    Bytes pinned;
    bool operator==(const Usage&) const = default;
  };

  // What keeps a client from holding more: its budget, its tenant's, or what there is.
  enum class Limit : uint8_t { kClient, kTenant, kPool };

  explicit QuotaTree(Options options);

  // Before the tenant's first client, and whenever they change.
  void SetBudgets(TenantId tenant, const Budgets& budgets);
  // REQUIRES, here and below: the client is attached.
  void SetBudgets(ClientId client, const Budgets& budgets);
  // So much of a device's memory is harvested: while it is, it is nobody's room.
  void SetHarvested(PoolId device, Bytes bytes) { pools_[ToInt(device)].harvested = bytes; }
  Bytes Harvested(PoolId device) const { return pools_[ToInt(device)].harvested; }
  // What all together may hold of a device; no more than its capacity.
  void SetLimit(PoolId device, Bytes limit);
  // REQUIRES: the tenant has budgets.
  void Attach(ClientId client, TenantId tenant, const Budgets& budgets);
  // Refunds its tenant all that the client holds, and devices too. What it holds of other pools
  // stays taken there until Refund.
  void Detach(ClientId client);

  // Counts `bytes` more for the client, its tenant and the pool, whether they fit or not, and less
  // as its reservation. Pools themselves count whole extents.
  void Charge(ClientId client, PoolId pool, Bytes bytes);
  // The client need not be attached: then the pool alone is refunded.
  void Refund(ClientId client, PoolId pool, Bytes bytes);
  // So much more, or less, of what the client holds cannot leave.
  void Pin(ClientId client, PoolId device, Bytes bytes);
  void Unpin(ClientId client, PoolId device, Bytes bytes);
  // The client's blocks of pinned memory.
  void SetPinned(ClientId client, Bytes blocks);
  // The tenant's slabs of pinned memory. Returns what they were.
  Bytes SetPinned(TenantId tenant, Bytes slabs);

  // Slabs are being emptied or given back; that is over, whether they left or stay.
  void BeginReclaiming(ClientId client, PoolId device, Bytes slabs);
  void EndReclaiming(ClientId client, PoolId device, Bytes slabs);
  // They were not given back in time, and nothing counts on them any more; that is over.
  void BeginOverdue(ClientId client, PoolId device, Bytes slabs);
  void EndOverdue(ClientId client, PoolId device, Bytes slabs);

  // Keeps `bytes` of what others give back for the client's request: those that ask later leave
  // them alone, and of what was taken by right (Claim) earlier ones, too. Replaces the one before.
  struct Reservation {
    Bytes bytes;
    uint64_t request = 0;  // the later the larger
    bool by_right = false;
  };
  void Reserve(ClientId client, PoolId device, const Reservation& reservation);
  void EndReservation(ClientId client, PoolId device) { reservations_.erase({client, device}); }
  Bytes Reserved(ClientId client, PoolId device) const;

  const Usage& Of(ClientId client, PoolId pool) const { return At(client).usage[ToInt(pool)]; }
  const Usage& Of(TenantId tenant, PoolId pool) const {
    return tenants_.at(tenant).usage[ToInt(pool)];
  }
  const Usage& Of(PoolId pool) const { return pools_[ToInt(pool)].usage; }
  const Budgets& BudgetsOf(ClientId client) const { return At(client).budgets; }
  const Budgets& BudgetsOf(TenantId tenant) const { return tenants_.at(tenant).budgets; }
  Bytes LimitOf(PoolId pool) const { return pools_[ToInt(pool)].limit; }
  // The client's budget, its tenant's or the pool's limit, and what counts against it.
  Bytes LimitOf(ClientId client, PoolId pool, Limit limit) const;
  const Usage& Against(ClientId client, PoolId pool, Limit limit) const;
  // The tenant that holds the most of the pool. REQUIRES: there is one. O(tenants).
  TenantId LargestHolder(PoolId pool) const;
  // Who holds, or has pinned, how much: the clients of the asker's tenant, and of the others each
  // tenant. Those who have nothing are left out. O(clients).
  struct Holders {
    std::vector<std::pair<ClientId, Bytes>> own;
    std::vector<std::pair<TenantId, Bytes>> others;
  };
  Holders HoldersOf(ClientId asker, PoolId pool, Bytes Usage::*count) const;

  // The most that the client could hold of the pool if nobody else held anything.
  Bytes Most(ClientId client, PoolId pool) const;
  // The budget that is exceeded with so much more, if one is: the client's before its tenant's.
  std::optional<Limit> Exceeded(ClientId client, PoolId pool, Bytes of_client,
                                Bytes of_tenant) const;
  // What binds first if the client is to hold `more`.
  Limit Binding(ClientId client, PoolId pool, Bytes more) const {
    return Exceeded(client, pool, more, more).value_or(Limit::kPool);
  }
  // What budgets, limit, guarantees and reservations leave the client of a device, for the request
  // of that number or one that is still to come: as it is, or as if what is being reclaimed were
  // gone. O(tenants).
  static constexpr uint64_t kLastRequest = std::numeric_limits<uint64_t>::max();
  enum class Coming : uint8_t { kIsHeld, kIsThere };
  Bytes Room(ClientId client, PoolId device, uint64_t request, Coming reclaiming) const;
  // What the client should give back: what it holds beyond its budget, and its part of what its
  // tenant or everybody does. Of a device with a lowered limit tenants give of their surplus, a
  // lower priority first; of one priority so that equal surplus for their weight stays, or in
  // proportion where no weight is set. O(tenants).
  Bytes Excess(ClientId client, PoolId device) const;

  // Whether anything of the device is guaranteed to anybody.
  bool HasGuarantees(PoolId device) const { return pools_[ToInt(device)].guaranteed > Bytes{0}; }
  // What the tenant is guaranteed.
  Bytes Guarantee(TenantId tenant, PoolId device) const {
    return GuaranteeOf(tenants_.at(tenant), device);
  }
  // What the guarantees of the others leave the tenant of the device.
  Bytes Share(TenantId tenant, PoolId device) const { return ShareOf(tenants_.at(tenant), device); }
  // With `more` bytes pinned the client's tenant would have more pinned than its share. That cannot
  // leave, so it would keep from others what they are guaranteed.
  bool ExceedsShare(ClientId client, PoolId device, Bytes more) const;
  // With slabs for `need` the client's tenant would hold no more than it is guaranteed, and only
  // the device's limit is in its way.
  bool IsWithinGuarantee(ClientId client, PoolId device, Bytes need) const;

  // Whether it matters whose memory makes way: something is guaranteed, a weight or priority set.
  bool HasClaims(PoolId pool) const { return HasGuarantees(pool) || HasRanks(); }
  // The tenant's surplus.
  Bytes BeyondGuarantee(TenantId tenant, PoolId pool) const {
    return BeyondGuarantee(tenants_.at(tenant), pool);
  }
  // kRight: what the asker is due, whatever that costs the other; kCost: what it may have where
  // that costs less than what else would leave.
  enum class Claim : uint8_t { kRight, kCost };
  // What of another tenant's surplus may make way for slabs for `need` of the client.
  Bytes Yields(TenantId from, ClientId asker, PoolId device, Bytes need, Claim claim) const;
  // Whether the client may take by right, and only the device's limit is in its way: up to its
  // tenant's guarantee, where others yield something, or where that was reserved. O(tenants).
  bool IsDue(ClientId client, PoolId device, Bytes need) const;
  // Where several yield the one of the lesser rank gives first: of lower priority, then, where a
  // weight is set, of more surplus for its weight. `less`: if it held so much less.
  using Rank = std::pair<TenantPriority, double>;
  bool HasRanks() const { return weighted_ > 0 || prioritized_ > 0; }
  Rank RankOf(TenantId tenant, PoolId pool, Bytes less = {}) const;

  // What of the held bytes other tenants than `asker` are guaranteed. O(tenants).
  Bytes GuaranteedHeld(TenantId asker, PoolId device) const;
  // What would be lent of others' guarantees if the client held `more`. O(tenants).
  Bytes Lent(ClientId client, PoolId device, Bytes more) const;

  // Of the host pool, what is not kept for tenants that hold little of it.
  Bytes Lendable() const { return options_.host - Kept(); }
  // Of the host pool, what slabs of pinned memory leave to tensors' copies.
  Bytes HostForCopies() const;
  // All tenants' budgets of the host pool, each at most the pool.
  Bytes HostBudgets() const { return host_budgets_; }
  // Whether the client's tenant may take so much more of the host pool: all of them together all
  // but what is kept, and of that each only little. REQUIRES: `more` is not zero.
  bool IsWithinHostShare(ClientId client, Bytes more) const;
  // Whether redundant copies of the client may make room for `asking`: of another tenant only where
  // that holds more than its part of the pool.
  bool MayDropCopiesOf(ClientId client, ClientId asking) const;
  // Takes so much of what is kept for the client's tenant, for what leaves a device for that
  // tenant's guarantee: else a user who fills the pool would keep the device, too. False where
  // that would be more than its part.
  bool TakeKept(ClientId client, Bytes more);
  // Some of what was so taken has to leave what is kept, else the next finds it taken. O(tenants).
  bool IsKeptTaken() const;
  // Whether the client may have a block of pinned memory, for which a slab is made unless `slab` is
  // zero, once idle slabs were given back of its own tenant's and of others'; copies take
  // `committed` of the pool at most.
  bool MayPin(ClientId client, Bytes block, Bytes slab, Bytes idle_own, Bytes idle_others,
              Bytes committed) const;

  // Aborts unless all sums agree; O(clients).
  void CheckInvariants() const;

 private:
  struct Pool {
    Bytes limit;
    Bytes guaranteed{};  // to tenants with clients
    Bytes harvested{};
    Usage usage{};
  };
  struct Tenant {
    TenantId id{};
    Budgets budgets;
    double weight() const { return budgets.weight.value_or(1); }
    uint32_t clients = 0;
    std::vector<Bytes> guarantee;  // by pool, before it is scaled (GuaranteeOf)
    std::vector<Usage> usage;      // by pool
    // Of what is kept of the host pool, taken for others' tensors that made way for its guarantee.
    Bytes kept_taken;
  };
  struct Client {
    Tenant* tenant = nullptr;
    Budgets budgets;
    std::vector<Usage> usage;  // by pool
  };
  using Reservations = std::map<std::pair<ClientId, PoolId>, Reservation>;

  const Client& At(ClientId client) const;
  Client& At(ClientId client) {
    return const_cast<Client&>(static_cast<const QuotaTree*>(this)->At(client));
  }
  Tenant& TenantFor(TenantId tenant);
  bool IsDevice(PoolId pool) const {
    return pool != kHostPool && ToInt(pool) <= options_.devices.size();
  }
  Bytes BudgetOf(const Budgets& budgets, PoolId pool) const;
  // Makes the same change to what the client, its tenant and all have of the pool.
  template <typename Change>
  void Apply(ClientId client, PoolId pool, Change change);
  // The tenant's guarantees, weight and priority count, or count no more, as it has clients.
  void CountClaims(const Tenant& tenant, bool present);
  // What the tenant is guaranteed: a share, where all of them are more than there is.
  Bytes GuaranteeOf(const Tenant& tenant, PoolId device) const;
  Bytes ShareOf(const Tenant& tenant, PoolId device) const;
  Bytes BeyondGuarantee(const Tenant& tenant, PoolId pool) const;
  // The tenant's part of what all hold beyond the device's limit.
  Bytes PartOfExcess(const Tenant& tenant, PoolId device, Bytes excess) const;
  // So much surplus for each unit of weight stays where tenants of the priority give `excess`.
  double LevelBeyond(TenantPriority priority, PoolId device, Bytes excess) const;
  // What the reservations of others come to that the client leaves alone: of all, and of its own
  // tenant.
  std::pair<Bytes, Bytes> ReservedByOthers(ClientId client, PoolId device, uint64_t request) const;
  // Free memory that is not lent to the tenant while others are present: a 64th for each of them
  // who does not hold so much, and for one who is still to come. A process that does not let go of
  // its slabs keeps them, so what is lent may not come back.
  Bytes KeptFromLoans(const Tenant& borrower, PoolId device) const;
  // Of the host pool what is kept for tenants that hold little of it, and of that one's part.
  Bytes Kept() const {
    const uint64_t part = options_.guaranteed_part;
    return Bytes(part == 0 ? 0 : options_.host.count() / part);
  }
  Bytes PartOfKept() const { return Bytes(Kept().count() / options_.guaranteed_part); }
  // If so much of the host pool is held, and so much by the tenant.
  bool IsWithinHostShare(Bytes held, Bytes of_tenant, Bytes more) const;

  const Options options_;
  std::vector<Pool> pools_;
  std::map<TenantId, Tenant> tenants_;
  std::map<ClientId, Client> clients_;
  // The one found last: one event asks for the same client several times.
  mutable std::pair<ClientId, const Client*> found_{};
  Reservations reservations_;
  Bytes host_budgets_;
  // Tenants with clients for which a weight is set, or another priority than the normal one.
  int weighted_ = 0;
  int prioritized_ = 0;
};

}  // namespace ravenstore::core
