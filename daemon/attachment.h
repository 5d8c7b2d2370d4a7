// One attached client process: what the control thread makes for it and the planner loop works
// with.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/events.h"
#include "core/result.h"
#include "core/types.h"
#include "device/device.h"
#include "ipc/segment.h"
#include "ipc/socket.h"
#include "ipc/unique_fd.h"
#include "ipc/wake.h"

namespace ravenstore::daemon {

// Owns: the client's control segment, its doorbell, and its arena on each device. Shared by all
// work that still uses it. Releasing the last reference unmaps and frees it, which may take
// milliseconds, so the loop releases its reference on a worker.
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
  bool fixed_addresses = false;  // of all its tensors
};

// Makes memory of the device and maps it at `offset` of the client's arena there, which is reserved
// first if that is not done; `*descriptor` is for the client. May take long. Errors: the device's.
// Threads: any; one at a time for an arena.
inline core::Status MakeMemory(Attachment& attachment, device::Device& device, core::DeviceId id,
                               core::Bytes arena_bytes, core::Bytes offset, core::Bytes bytes,
                               ipc::UniqueFd* descriptor) {
  auto& arena = attachment.arenas[core::ToInt(id)];
  if (arena == nullptr) {
    RAVEN_ASSIGN_OR_RETURN(arena, device.ReserveVaRange(arena_bytes));
  }
  RAVEN_ASSIGN_OR_RETURN(auto memory, device.CreateMemory(bytes));
  RAVEN_ASSIGN_OR_RETURN(*descriptor, memory->Export());
  return arena->Map(offset, std::move(memory));
}

}  // namespace ravenstore::daemon
