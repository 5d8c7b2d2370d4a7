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

// One device and the range of addresses in which its slabs appear.
// Owns: the arena and the slabs' descriptors until they are mapped.
// Threads: any; the watcher offers slabs and the mapper maps and releases them, while others map
// and read. No lock is held over a call of the driver but in Prepare.
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
  // Maps what is missing of the extent; waits until `deadline` for descriptors under way, and for
  // slabs that another thread is mapping.
  // Errors: kTimedOut (none came; why, if that is known), kLost, kCorrupt (outside the arena), the
  // device's.
  core::Status EnsureMapped(uint64_t offset, uint64_t bytes, core::Tick deadline,
                            const PhaseWord& phase);

  // The watcher: a slab. Makes no driver call.
  // Errors: kCorrupt (outside the arena, misaligned, or offered twice). An error of the device is
  // returned by EnsureMapped to the thread whose tensor is in the slab.
  core::Status Offer(uint64_t offset, uint64_t bytes, ipc::UniqueFd descriptor);
  // The mapper: maps the slab ahead of need if the arena is there; else the first thread that needs
  // it does, and makes the arena.
  void MapAhead(uint64_t offset);
  // The mapper: unmaps or forgets the slab. kNotFound when none begins there.
  core::Status Release(uint64_t offset);
  // The watcher: a packet could not be taken, which may have brought a slab's descriptor.
  void NoteMissedPacket(const core::Error& why);
  // Wakes those in EnsureMapped so that they look at the session's phase.
  void WakeWaiters();

  // Around fork: the child must be able to close the descriptors. Waits for slabs that are being
  // mapped.
  void LockForFork();
  void UnlockAfterFork() { mutex_.unlock(); }
  // In the child, between the two: closes the descriptors of slabs not mapped yet.
  void DropDescriptors();

 private:
  struct Slab {
    enum class State : uint8_t { kOffered, kMapping, kMapped, kFailed, kUnmapping };

    uint64_t bytes = 0;
    State state = State::kOffered;
    ipc::UniqueFd descriptor;              // of kOffered
    std::optional<core::Error> why_not{};  // of kFailed: the device did not map it
  };

  // Maps the offered slabs that the extent touches. `lock`, of mutex_, is not held meanwhile.
  core::Status MapOffered(uint64_t offset, uint64_t bytes, std::unique_lock<std::mutex>* lock);
  // A thread is mapping a slab that the extent touches. The next two REQUIRE mutex_.
  bool IsMapping(uint64_t offset, uint64_t bytes) const;
  void Mark(uint64_t offset, uint64_t bytes, bool mapped);

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

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Slab> slabs_;  // by offset; guarded by mutex_
  std::string missed_;              // why a packet was, the last time; guarded by mutex_
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
