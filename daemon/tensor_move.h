// The bytes of one tensor, on their way to another device.
//
// Resident units are copied from device to device, the others from their pools.
//
// Owns: the copies under way, with the memory that they need. Threads: the planner loop. Errors:
// those of the copies; kDevice if a copy in a pool went while it was read. Cost: O(units).
#pragma once

#include "core/execution/page_executor.h"
#include "core/types.h"
#include "daemon/client_memory.h"
#include "daemon/page_copies.h"
#include "daemon/transfers.h"

namespace ravenstore::daemon {

// A client's tensors on one device.
struct MoveSide {
  const core::PageExecutor* executor = nullptr;
  ClientMemory* memory = nullptr;
  PageCopies* copies = nullptr;
};

// From one device to the others.
struct DeviceLink {
  TransferLane* lane = nullptr;
  core::Bytes chunk;  // of a copy, at most
};

// Copies the tensor. `done` is called when all copies have ended. Both sides and the link outlive
// the move. REQUIRES: its client does not use it; it is resident in `to`; its resident units in
// `from` stay resident until the end, unless the client goes.
// Returns false, and copies nothing, if a unit is being mapped or copied in, or if its pool has no
// link to the other device that copies any part of a page.
bool StartMove(core::TensorNumber tensor, const MoveSide& from, const MoveSide& to,
               const DeviceLink& link, TransferLane::Done done);

}  // namespace ravenstore::daemon
