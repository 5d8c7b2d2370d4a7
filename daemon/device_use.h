// Whose the memory of the devices is, as the daemon shows it. Pure.
#pragma once

#include <optional>

#include "core/types.h"
#include "daemon/harvest.h"
#include "daemon/memory_watch.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

// Of one device.
struct DeviceUse {
  core::Bytes total;
  core::Bytes store;      // pages of clients
  core::Bytes peer_pool;  // for other devices' tensors: a share of fixed size, or what is harvested
  core::Bytes jobs;       // of legacy jobs in addition, as they report it
  std::optional<Harvest::View> harvest{};
};

// Memory used beyond the store's counts as legacy jobs', up to what they report. The rest counts as
// others'. `with_processes`: names them, too.
void FillDevice(const DeviceUse& use, const MemoryWatch::Seen& seen, core::Tick now,
                bool with_processes, proto::DeviceUse* to);

}  // namespace ravenstore::daemon
