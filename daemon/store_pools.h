// The pools where copies of the pages of all clients are: the host's, shares of peer devices and
// what is harvested of them, files, memory of other nodes.
//
// Each device reaches some of them. They are in the order of the way back, the cheapest first; this
// is the order in which executors number them.
//
// What a client may have in a pool depends on the limits of the client and its tenant, and on what
// others have there. Divide() says it again after each change. For the host pool core::CopyQuota
// says it.
//
// Owns: the pools' bookkeeping. Units: bytes, bytes per second. Threads: the planner loop. Cost:
// O(uses x pools) for Divide.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/events.h"
#include "core/link_model.h"
#include "core/plan/copy_pools.h"
#include "core/result.h"
#include "core/store_views.h"
#include "core/topology.h"
#include "core/types.h"
#include "daemon/away_memory.h"
#include "daemon/page_pool.h"
#include "device/device.h"

namespace ravenstore::daemon {

class StorePools {
 public:
  // Another pool than the host's.
  struct Other {
    core::PoolId id{};
    core::Pool pool;
    AwayMemory* memory = nullptr;
    std::vector<core::LinkModel> links{};  // of each device
  };
  struct Options {
    core::Bytes host_capacity;
    core::Bytes host_step;
    core::Bytes host_ahead;
    std::vector<core::LinkModel> links{};  // of each device to the host
    std::vector<Other> others{};
    core::Bytes device_granularity = core::MiB(2);  // of memory that is harvested
    core::Bytes exchange{};                         // as CopyQuota::exchange()
    TransferLane::Options transfers{};
  };
  struct Hooks {
    std::function<void(core::GrowPool)> grow;
    std::function<void(core::ShrinkPool)> shrink;
    // Of the copies to and from the device's memory; null: there is none.
    std::function<core::Pacer*(core::DeviceId owner)> pacer{};
  };
  struct Member {
    Other of;
    std::unique_ptr<PagePool> pool{};
    double rate = 0;     // the most of its links; 0: their own
    core::Bytes lent{};  // of one that comes and goes, as its PoolLimit says
    bool failed = false;

    bool is_harvested() const { return of.pool.covered; }
    bool has_chunks() const { return of.pool.chunk > core::Bytes{}; }
    core::LinkModel LinkOf(core::DeviceId device) const;
  };
  // What copies of one client on one device take of a pool.
  struct Use {
    core::ClientId client{};
    core::TenantId tenant{};
    core::Bytes used;
    core::Bytes redundant;      // of these: other clients may have that room
    core::Bytes client_budget;  // for all devices together
    core::Bytes tenant_budget;  // for all clients together
    core::Bytes may_have{};     // what Divide() says
  };

  // `host` and the other pools' memory outlive this.
  StorePools(Options options, const device::Devices& devices, AwayMemory* host, Hooks hooks);

  // Opens the links, which may take long. Errors: those of the devices.
  core::Status Open(const device::Devices& devices);

  PagePool& host() { return *members_.at(core::kHostPool).pool; }
  const PagePool& host() const { return *members_.at(core::kHostPool).pool; }
  std::map<core::PoolId, Member>& all() { return members_; }
  const std::map<core::PoolId, Member>& all() const { return members_; }
  // Those that the device reaches, by the executor's numbers.
  const std::vector<Member*>& Of(core::DeviceId device) const { return reached_[ToInt(device)]; }
  core::plan::PoolNumber HostOf(core::DeviceId device) const;
  // For an executor on the device, without room yet.
  std::vector<core::plan::CopyPool> CopyPoolsOf(core::DeviceId device) const;
  // The pool of harvested memory of the device; null: there is none.
  Member* HarvestOf(core::DeviceId device);
  const Member* HarvestOf(core::DeviceId device) const;
  // Bytes of the device that are harvested, those that will be given back included.
  core::Bytes Harvested(core::DeviceId device) const;

  // Sets Use::may_have of all uses of one pool.
  static void Divide(const PagePool& pool, std::vector<Use>* uses);

  // The links end, and with them the copies under way. Nothing else may be called after.
  void EndCopies();
  bool Poll(core::Tick now);
  bool IsCopying() const;
  core::Tick NextPump(core::Tick poll) const;
  core::Tick NextWake() const;

  std::string NameOf(core::PoolId pool) const;
  core::TierView TierOf(core::PoolId pool) const;

 private:
  void Add(Other other, PoolMemory::Options memory, const std::string& name);

  const Options options_;
  const Hooks hooks_;
  std::map<core::PoolId, Member> members_;
  std::vector<std::vector<Member*>> reached_;  // by device
};

}  // namespace ravenstore::daemon
