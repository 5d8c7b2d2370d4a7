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
  core::Bytes jobs;       // of legacy jobs beside that, as they say themselves
  std::optional<Harvest::View> harvest{};
};

// What is used beyond the store's is legacy jobs', as far as they say so, and else others'.
// `with_processes`: names them, too.
void FillDevice(const DeviceUse& use, const MemoryWatch::Seen& seen, core::Tick now,
                bool with_processes, proto::DeviceUse* to);

}  // namespace ravenstore::daemon
