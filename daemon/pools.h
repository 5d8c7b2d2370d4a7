// The pools other than the devices' and the host's, as the daemon starts with them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/result.h"
#include "core/topology.h"
#include "daemon/away_memory.h"
#include "daemon/config.h"
#include "device/device.h"
#include "device/medium.h"

namespace ravenstore::daemon {

// Memory that other nodes lend, and what joins the host to it. Bytes per second.
struct RemoteMemory {
  std::unique_ptr<device::PiecedMedium> medium;  // null: there is none
  core::Duration latency{};
  double write = 0;  // positive, as the next
  double read = 0;
};

// Their numbers follow the devices'. Memory stands in the order of the pools.
struct OtherPools {
  std::vector<core::Pool> pools;
  std::vector<core::Link> links;
  std::vector<std::unique_ptr<AwayMemory>> memory;
  std::vector<core::Bytes> shares;  // of each device's memory, taken for the others' tensors
  // Whose memory the pools are that are harvested.
  std::map<core::PoolId, core::DeviceId> harvests;
  std::optional<core::PoolId> remote;  // what other nodes lend; nothing before its first PoolLimit
  uint32_t pairs_left_out = 0;         // of devices that do not reach one another, or wrongly
};

// Takes their memory, checks which devices reach which, and measures links where the configuration
// gives no rates, which takes some seconds at most. `links` are those of the devices to the host.
// The medium of `remote` is not touched.
// Errors: kInvalidArgument, naming the key, what stands there and why it cannot be.
core::Result<OtherPools> MakeOtherPools(const Config& config, const device::Devices& devices,
                                        const std::vector<core::LinkModel>& links,
                                        RemoteMemory remote = {});

}  // namespace ravenstore::daemon
