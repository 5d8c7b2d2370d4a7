// The devices that this process and its daemon share, and this client's arena on each.
//
// Devices are matched by UUID: the daemon numbers all of its own, this process only those that it
// can see. Nothing is done to a device before the first tensor on it: a job that uses one GPU of
// eight must not get a context on the others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/phase.h"
#include "core/result.h"
#include "core/types.h"
#include "device/device.h"
#include "ipc/unique_fd.h"
#include "proto/layout.h"

namespace ravenstore::client {

// One device and the range of addresses in which the daemon's memory appears.
// Owns: the arena, the memory that was imported, and its mappings.
// Threads: any; Import, Map, Unmap and Release the mapper's alone. No lock is held over a call of
// the driver but in Prepare.
class ClientDevice {
 public:
  ClientDevice(std::shared_ptr<device::Device> device, uint32_t daemon_ordinal, int local_ordinal,
               core::Bytes arena_bytes, proto::Segment* segment);
  ~ClientDevice();

  uint32_t daemon_ordinal() const { return daemon_ordinal_; }
  int local_ordinal() const { return local_ordinal_; }
  device::Device& device() { return *device_; }

  // Reserves the arena and registers the segment's words with the device, once.
  // Errors: what the device says.
  core::Status Prepare();

  // The first address of the arena; null before Prepare.
  std::byte* base() const { return base_.load(std::memory_order_acquire); }

  // True when every byte of the extent is mapped: a few loads.
  bool Mapped(uint64_t offset, uint64_t bytes) const;
  // Waits until `deadline` for the mapper to map what is missing of the extent.
  // Errors: kTimedOut (why, if that is known), kLost, kCorrupt (outside the arena), the device's.
  core::Status EnsureMapped(uint64_t offset, uint64_t bytes, core::Tick deadline,
                            const PhaseWord& phase);
  // Wakes those in EnsureMapped so that they look at the session's phase.
  void WakeWaiters();
  // A packet could not be taken, which may have brought what EnsureMapped waits for.
  void NoteMissedPacket(const core::Error& why);

  // ---- The mapper's. An error is returned by EnsureMapped, too, to the thread whose tensor is
  // there.
  // Makes the arena, if it is not there. The memory has this number until its Release.
  core::Status Import(uint32_t memory, core::Bytes bytes, core::Result<ipc::UniqueFd> descriptor);
  // Errors: kCorrupt (outside the arena, misaligned, or mapped already), that of the Import.
  core::Status Map(uint32_t memory, uint64_t offset, uint64_t bytes);
  // Unmaps or forgets what Map mapped there. kNotFound when nothing begins there.
  core::Status Unmap(uint64_t offset);
  core::Status Release(uint32_t memory);
  // Unmaps and releases all. What cannot be unmapped stays. REQUIRES: the mapper has stopped.
  void UnmapAll();

  // Around fork.
  void LockForFork() { mutex_.lock(); }
  void UnlockAfterFork() { mutex_.unlock(); }

 private:
  using Memory = std::shared_ptr<const device::PhysicalMemory>;

  core::Result<Memory> ImportFrom(core::Bytes bytes, core::Result<ipc::UniqueFd> descriptor);
  core::Status MapInto(uint32_t memory, uint64_t offset, uint64_t bytes);
  void Mark(uint64_t offset, uint64_t bytes, bool mapped);
  // Why the mapper could not map a part of the extent. REQUIRES mutex_.
  std::optional<core::Error> FailureIn(uint64_t offset, uint64_t bytes) const;

  const std::shared_ptr<device::Device> device_;
  const uint32_t daemon_ordinal_;
  const int local_ordinal_;
  const uint64_t arena_bytes_;
  const uint64_t granularity_;
  proto::Segment* const segment_;
  std::atomic<std::byte*> base_{nullptr};
  // One bit for each granule of the arena: set while it is mapped.
  std::vector<std::atomic<uint64_t>> mapped_;

  std::mutex preparing_;
  std::unique_ptr<device::Registration> registration_;  // guarded by preparing_
  std::unique_ptr<device::VaRange> arena_;              // constant once base_ is set

  // The mapper's alone.
  std::map<uint32_t, core::Result<Memory>> memories_;  // by number
  std::map<uint64_t, uint64_t> mappings_;              // bytes by offset

  struct Failed {
    uint64_t bytes;
    core::Error why;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Failed> failed_;  // by offset; guarded by mutex_
  std::string missed_;                 // why a packet was, the last time; guarded by mutex_
};

// What the daemon says of one device (proto::Device).
struct DaemonDevice {
  std::string uuid;
  core::Bytes arena;
};

// Constant after Match.
class DeviceSet {
 public:
  // Pairs the daemon's devices with `local` ones. Errors: kNotFound when none pairs.
  static core::Result<DeviceSet> Match(const std::vector<DaemonDevice>& daemon,
                                       const device::Devices& local, proto::Segment* segment);

  // The device that this process calls `ordinal`. Errors: kNotFound, in words.
  core::Result<ClientDevice*> Local(int ordinal) const;
  // The device that the daemon calls `ordinal`, or null when this process does not see it.
  ClientDevice* OfDaemon(uint32_t ordinal) const {
    return ordinal < by_daemon_.size() ? by_daemon_[ordinal] : nullptr;
  }
  const std::vector<std::unique_ptr<ClientDevice>>& all() const { return devices_; }

 private:
  std::vector<std::unique_ptr<ClientDevice>> devices_;
  std::vector<ClientDevice*> by_daemon_;
  std::vector<ClientDevice*> by_local_;
  std::vector<std::string> local_uuids_;
};

}  // namespace ravenstore::client
