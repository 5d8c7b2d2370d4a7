// Legacy jobs' requests for device memory that the driver has none left of: finds out what there
// is, has the store keep to the limits that daemon/reclaim_requests.h decides on, and answers.
//
// While a request waits the store is looked at every kWhileWaiting, and while it may hold less
// than it could every kWhileLowered, so that it has back what the jobs have freed.
//
// Threads: the control thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/types.h"
#include "daemon/connections.h"
#include "daemon/device_memory.h"
#include "daemon/reclaim_requests.h"

namespace ravenstore::daemon {

class LegacyReclaims {
 public:
  static constexpr core::Duration kWhileWaiting{std::chrono::milliseconds(1)};
  static constexpr core::Duration kWhileLowered{std::chrono::milliseconds(500)};

  // `capacities`: what the store may hold of each device without requests. All that is pointed to
  // outlives this.
  LegacyReclaims(std::vector<core::Bytes> capacities, DeviceMemory* memory,
                 Connections* connections);

  // A job lacks `bytes` of a device, of which it may have `most`. It is answered with what it was
  // given, sooner or later. REQUIRES: device < capacities.size().
  void Begin(const Caller& caller, uint64_t request, size_t device, core::Bytes bytes,
             core::Bytes most);
  // The connection has ended.
  void Forget(uint64_t key) { requests_.Forget(key); }

  // When to call OnTime; kNever: not before the next Begin.
  core::Tick due() const { return due_; }
  // Does nothing before due().
  void OnTime(core::Tick now);

 private:
  void Look();
  void OnFound(const DeviceMemory::Usage& usage);
  // How much of the store's capacity on each device others use.
  std::vector<core::Bytes> UsedByOthers(const DeviceMemory::Usage& usage) const;

  const std::vector<core::Bytes> capacities_;
  DeviceMemory* const memory_;
  Connections* const connections_;
  ReclaimRequests requests_;
  core::Tick due_ = core::kNever;
};

}  // namespace ravenstore::daemon
