// One attached client process: what the control thread makes for it and the planner loop works
// with.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/events.h"
#include "core/types.h"
#include "device/device.h"
#include "ipc/segment.h"
#include "ipc/socket.h"
#include "ipc/wake.h"

namespace ravenstore::daemon {

// Owns: the client's control segment, its doorbell, and its arena on each device. Shared by
// whatever still has work on it; the last one to let go unmaps and releases, which may take
// milliseconds, so the loop lets go on a worker.
struct Attachment {
  core::ClientId id{};
  core::TenantId tenant{};
  core::Budgets budgets;
  pid_t pid = 0;
  uid_t uid = 0;
  std::string name;

  ipc::ControlSegment segment;
  ipc::Doorbell doorbell;
  // By device; null until the client's first slab there.
  std::vector<std::unique_ptr<device::VaRange>> arenas;
};

}  // namespace ravenstore::daemon
