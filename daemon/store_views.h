// What the store on pages says of itself, to admins, exporters and callers that find no room.
//
// Owns: nothing. The tables and pools are its owner's and outlive it. Units: bytes. Threads: the
// planner loop. Errors: none, unless it says so. Cost: O(clients), unless it says less.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/books/copy_quota.h"
#include "core/result.h"
#include "core/store_views.h"
#include "core/types.h"
#include "daemon/holders.h"
#include "daemon/store_pools.h"
#include "daemon/store_tables.h"

namespace ravenstore::daemon {

class StoreViews {
 public:
  StoreViews(const StoreTables* tables, const StorePools* pools, core::Bytes host_capacity)
      : tables_(*tables), pools_(*pools), host_capacity_(host_capacity) {}

  // ---- Tensors. O(1).
  // kNoTensor when the slot holds none.
  core::TensorId Find(core::ClientId client, core::SlotId slot) const;
  bool Knows(core::TensorId tensor) const { return tables_.Find(tensor).client != nullptr; }
  // REQUIRES: Knows().
  core::TensorView View(core::TensorId tensor) const;
  // REQUIRES: Knows(). Its client may be gone.
  core::Explanation Explain(core::TensorId tensor, core::Tick now) const;
  // The pages beneath a tensor. `at`: where they are in the daemon's arena, in their order, if the
  // tensor is in use; else empty. REQUIRES: Knows(), and its client is attached.
  struct Pages {
    core::Bytes page;    // of each
    core::Bytes offset;  // where the tensor begins in the first
    std::vector<core::Bytes> at{};
  };
  Pages PagesOf(core::TensorId tensor) const;
  // Adds up to `limit` tensors of one client whose slot is at or after `*slot`, which is advanced
  // to where the next call continues; false when there are no more. It looks at a limited number of
  // slots: fewer tensors, or none, need not be the end. REQUIRES: the client is attached.
  bool List(core::ClientId client, uint32_t* slot, size_t limit,
            std::vector<core::TensorView>* views) const;

  // ---- Clients and tenants.
  // REQUIRES: the client is attached.
  core::ClientView View(core::ClientId client) const;
  // REQUIRES: the tenant has had limits.
  core::TenantView View(core::TenantId tenant, core::DeviceId device) const;
  std::vector<core::ClientId> Clients() const;
  const core::PlannerStats& stats() const { return tables_.stats; }
  // The same counts for one client alone. REQUIRES: the client is attached.
  const core::PlannerStats& StatsOf(core::ClientId client) const;
  // The held bytes of the device that are guaranteed to tenants other than `asker`.
  core::Bytes Guaranteed(core::DeviceId device, core::TenantId asker) const;

  // ---- Devices and pools.
  core::TierView DeviceTier(core::DeviceId device) const;
  // Bytes of the device that are harvested, those that will be given back included.
  core::Bytes Harvested(core::DeviceId device) const { return pools_.Harvested(device); }
  // Of that, what could not be destroyed: it counts for good.
  core::Bytes HarvestStuck(core::DeviceId device) const;
  std::string NameOf(core::PoolId pool) const { return pools_.NameOf(pool); }
  core::TierView HostTier() const;
  // The pools other than the devices' and the host's, and one of them. Where memory comes and goes,
  // `held` is all memory that is there and `capacity` the most that may be.
  std::vector<core::PoolId> OtherPools() const;
  core::TierView OtherTier(core::PoolId pool) const { return pools_.TierOf(pool); }

  // ---- Room.
  // Whether the client may have a block of pinned memory, for which a slab is made unless `slab` is
  // zero, after these empty slabs have been released. Errors: kOutOfMemory, which says "pinned
  // memory is exhausted" and names the holders. REQUIRES: the client is attached.
  core::Status MayPin(core::ClientId client, core::Bytes block, core::Bytes slab,
                      const core::CopyQuota::Idle& without = {}) const;
  // Why a call for that tensor finds no room there; it names the holders.
  std::string WhyNoRoom(const StoreTables::Part& part, core::Bytes size) const;
  // Aborts on the first thing that disagrees with another: for tests and fuzzers; O(n).
  void CheckInvariants() const;

 private:
  std::vector<Holder> HoldersOf(core::DeviceId device) const;
  std::string HostHolder() const;
  core::Bytes GuaranteeOf(core::TenantId tenant, core::DeviceId device) const;
  // The guarantees of tenants with clients other than the asker.
  core::Bytes GuaranteedToOthers(core::DeviceId device, core::TenantId asker) const;
  // Bytes of the device that the tenant's clients hold.
  core::Bytes HeldBy(core::TenantId tenant, core::DeviceId device) const;

  const StoreTables& tables_;
  const StorePools& pools_;
  const core::Bytes host_capacity_;
};

}  // namespace ravenstore::daemon
