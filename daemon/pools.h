// The pools beside the devices' and the host's, as the daemon starts with them.
#pragma once

#include <memory>
#include <vector>

#include "core/result.h"
#include "core/topology.h"
#include "daemon/away_memory.h"
#include "daemon/config.h"
#include "device/device.h"

namespace ravenstore::daemon {

// Their numbers follow the devices'. Memory stands in the order of the pools.
struct OtherPools {
  std::vector<core::Pool> pools;
  std::vector<core::Link> links;
  std::vector<std::unique_ptr<AwayMemory>> memory;
};

// Takes their memory, and measures their links where the configuration gives no rates, which takes
// some seconds at most.
// Errors: kInvalidArgument, naming the key, what stands there and why it cannot be.
core::Result<OtherPools> MakeOtherPools(const Config& config, const device::Devices& devices);

}  // namespace ravenstore::daemon
