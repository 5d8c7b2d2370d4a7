// Legacy jobs that wait for their turn on a device: looks at what the devices have for them, every
// kLookEvery while anybody waits, and tells each its place in the queue (daemon/wait_queue.h).
//
// Threads: the control thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "core/types.h"
#include "daemon/connections.h"
#include "daemon/device_memory.h"
#include "daemon/legacy.h"
#include "daemon/log_budget.h"
#include "daemon/wait_queue.h"
#include "device/device.h"

namespace ravenstore::daemon {

class LegacyWaits {
 public:
  // However many come and go, it is looked at no more often than that.
  static constexpr core::Duration kLookEvery{std::chrono::milliseconds(50)};

  // All that is pointed to outlives this.
  LegacyWaits(device::Devices devices, const LegacyLedger* ledger, DeviceMemory* memory,
              Connections* connections, LogBudget* log);

  // The job waits until it may use `bytes` of the device, which are promised to it then until its
  // process ends. It is told its place, whenever that changes; of its turn at once when it had it.
  // REQUIRES: device < devices.size(); the process has a number.
  void Add(const Caller& caller, uint64_t request, size_t device, core::Bytes bytes);
  // The connection has ended.
  void Leave(uint64_t key) { queue_.Leave(key); }
  // The process has ended.
  void Ended(const ipc::Peer& peer) { queue_.Ended({peer.pid, peer.start_time}); }
  WaitQueue::Place PlaceOf(pid_t pid) const { return queue_.PlaceOf(pid); }

  // When to call OnTime; kNever: not before the next Add.
  core::Tick due() const { return due_; }
  // Does nothing before due().
  void OnTime(core::Tick now);

 private:
  void OnFound(const DeviceMemory::Usage& usage);
  void Tell(uint64_t key, uint64_t request, uint32_t position, core::Bytes bytes);
  void LookAgain();

  const device::Devices devices_;
  const LegacyLedger* const ledger_;
  DeviceMemory* const memory_;
  Connections* const connections_;
  LogBudget* const log_;
  WaitQueue queue_;
  core::Tick due_ = core::kNever;
};

}  // namespace ravenstore::daemon
