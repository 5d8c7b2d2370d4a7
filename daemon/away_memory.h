// The memory of a pool where tensors lie that are away from their devices, as copies reach it.
//
// Owns: the memory. Threads: one at a time.
#pragma once

#include <memory>
#include <optional>
#include <set>

#include "core/result.h"
#include "core/types.h"
#include "daemon/transfers.h"
#include "device/device.h"
#include "device/medium.h"

namespace ravenstore::daemon {

class AwayMemory {
 public:
  virtual ~AwayMemory() = default;

  // Where bytes at `offset` of the pool go to, or come from.
  virtual device::Target TargetAt(core::Bytes offset) = 0;
  virtual device::Source SourceAt(core::Bytes offset) = 0;
  // Of the pool; places of tensors and of copies' chunks are multiples of it.
  virtual core::Bytes granularity() const = 0;

  // A channel between the pool and a device. May take long. Errors: those of the device.
  virtual core::Result<std::unique_ptr<device::Channel>> Open(core::DeviceId device,
                                                              device::Direction direction) = 0;
  // Whether copies between the two go through pinned memory: then one may run across slabs.
  virtual bool IsStaged(core::DeviceId device) const = 0;
  // Whose memory it is: a device's whose peers use it; not set: the host's, or a medium's.
  virtual std::optional<core::DeviceId> owner() const { return std::nullopt; }
  // A channel out of the pool to the host pool. REQUIRES: its memory comes and goes by chunks.
  virtual core::Result<std::unique_ptr<device::Channel>> OpenToHost();
  // Makes a chunk of `bytes` of the pool's memory at `offset`, and destroys what was made there.
  // May take long. REQUIRES: its memory comes and goes. Threads: any; one at a time for a chunk.
  virtual core::Status Make(core::Bytes offset, core::Bytes bytes);
  virtual core::Status Destroy(core::Bytes offset);
  // A copy to the pool or out of it ended. Those of one instant count as one: with a channel all
  // that is queued fails.
  virtual void Ended(bool /*ok*/, core::Tick /*now*/) {}
  // Ok, or why all data in this memory is lost, for good. Cheap.
  virtual core::Status Health() const = 0;

  // What one copy reaches that is not staged.
  SlabMap slabs;
};

// The host pool: pinned memory, which comes and goes chunk by chunk.
std::unique_ptr<AwayMemory> HostMemory(device::Devices devices,
                                       std::shared_ptr<device::VaRange> range);

// After eight copies in a row that failed it is lost: its device is gone.
// Memory of devices[owner], `range`: a share of fixed size, whose first `bytes` exist, or harvested
// memory, of which nothing exists yet. Devices that reach it copy directly; the others, and the
// owner, copy by way of the host.
std::unique_ptr<AwayMemory> PeerMemory(device::Devices devices, core::DeviceId owner,
                                       std::unique_ptr<device::VaRange> range, core::Bytes bytes,
                                       std::set<core::DeviceId> reached_by);

// A pool in a medium whose chunks are the medium's pieces. It is never lost as a whole; a copy from
// or to a piece that is lost fails, and no other.
std::unique_ptr<AwayMemory> MemoryInPieces(device::Devices devices,
                                           std::unique_ptr<device::PiecedMedium> medium);

// A pool in a medium. Once nothing but failures come of the medium, it is lost.
std::unique_ptr<AwayMemory> MemoryOf(device::Devices devices,
                                     std::unique_ptr<device::Medium> medium);

}  // namespace ravenstore::daemon
