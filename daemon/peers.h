// What two devices do for each other, as the daemon starts.
#pragma once

#include "core/result.h"
#include "core/types.h"
#include "device/device.h"

namespace ravenstore::daemon {

// In bytes per second: from the device to its peer's memory, and back.
struct PeerRates {
  double out = 0;
  double in = 0;
};

// Copies a pattern each way between memory of `device` and `share`, a range of `peer` with memory
// at its beginning of `bytes`, and compares every byte that came by way of the host; then measures.
// What is in the share is undefined afterwards.
// Errors: those of the devices; kCorrupt for bytes that differ; kTimedOut after two seconds.
// Threads: one that may wait.
core::Result<PeerRates> CheckPeer(device::Device& device, device::Device& peer,
                                  device::VaRange& share, core::Bytes bytes);

}  // namespace ravenstore::daemon
