// The memory of all pools other than the devices': whether it still works, and how fast copies from
// and to devices that lend it may go.
//
// Owns: the memory, and the pacers. Threads: the planner loop. Units: bytes per second. Errors: as
// ReserveHost says. Cost: O(pools) a call.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "core/pacer.h"
#include "core/result.h"
#include "core/topology.h"
#include "core/types.h"
#include "daemon/away_memory.h"
#include "daemon/loop_state.h"
#include "daemon/memory_watch.h"
#include "daemon/store_pools.h"
#include "device/device.h"

namespace ravenstore::daemon {

class LoopPools {
 public:
  struct Options {
    // All pools, and the links between them: the host pool, the devices', then further ones.
    core::Topology topology;
    // Of all copies from and to the memory of a device that is busy; 0: no cap.
    double busy_bytes_per_second = 0;
    core::Bytes in_flight;  // as core::Pacer
  };

  // `others`: the memory of the pools that follow the devices' in the topology, in their order.
  // `state` outlives this.
  LoopPools(LoopState* state, Options options, size_t devices,
            std::vector<std::unique_ptr<AwayMemory>> others);
  // Reserves the addresses of the host pool. Errors: those of the device.
  core::Status ReserveHost(const device::Devices& devices, core::Bytes capacity, int numa_node);

  AwayMemory* Of(core::PoolId pool) const { return memory_.at(pool).get(); }
  // All but the host pool, as the store takes them.
  std::vector<StorePools::Other> Others() const;
  // The user whose work it is to make and destroy chunks of the pool.
  core::TenantId WorkOf(core::PoolId pool) const;
  // Of copies from and to the device's memory for other devices.
  core::Pacer* PacerOf(core::DeviceId owner) {
    return &pacers_.try_emplace(owner, options_.in_flight).first->second;
  }
  // Paces copies by whether the watch saw that their device is busy.
  void Pace(const std::vector<MemoryWatch::Seen>& seen);
  // Reports pools that failed since the last call to the store. Their bytes are lost.
  void NoteFailed();

 private:
  LoopState& state_;
  const Options options_;
  const size_t devices_;
  std::map<core::PoolId, std::unique_ptr<AwayMemory>> memory_;
  std::set<core::PoolId> failed_;  // of these
  // Without a rate while the device is not busy.
  std::map<core::DeviceId, core::Pacer> pacers_;
};

}  // namespace ravenstore::daemon
