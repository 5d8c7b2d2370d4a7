// Legacy jobs that wait for their turn on a device. Every kLookEvery while any job waits, looks at
// what the devices have for them, and notifies each job of its place in the queue
// (daemon/wait_queue.h).
//
// Threads: the control thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/link_model.h"
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
  struct Options {
    device::Devices devices{};
    double slowdown_most = 0;              // that an admission may bring; 0: memory alone counts
    core::Duration settle{};               // as WaitQueue has it
    std::vector<core::LinkModel> links{};  // of each device; none: not known
    // How much each of the devices is used. Null: not known.
    std::function<std::vector<ResourceUse>()> measure{};
    LegacyLedger* ledger = nullptr;
    DeviceMemory* memory = nullptr;
    Connections* connections = nullptr;
    LogBudget* log = nullptr;
  };
  explicit LegacyWaits(Options options) : options_(std::move(options)), queue_(options_.settle) {}

  // The job waits until it may use `bytes` of the device, which are reserved for it then until its
  // process ends. It is notified whenever its place changes. If it had its turn already, it is
  // notified of that immediately.
  // REQUIRES: device < devices.size(); the process has a number.
  void Add(const Caller& caller, uint64_t request, size_t device, core::Bytes bytes);
  // The same for what is expected of a job, on any of some devices, as admission has it. `wanted`
  // names all but who asks. REQUIRES: the same.
  void Admit(const Caller& caller, uint64_t request, WaitQueue::Waiter wanted);
  // The connection has ended.
  void Leave(uint64_t key) { queue_.Leave(key); }
  // The process has ended.
  void Ended(const ipc::Peer& peer) { queue_.Ended({peer.pid, peer.start_time}); }
  const WaitQueue& queue() const { return queue_; }
  double slowdown_most() const { return options_.slowdown_most; }

  // When to call OnTime; kNever: not before the next Add.
  core::Tick due() const { return due_; }
  // Does nothing before due().
  void OnTime(core::Tick now);

 private:
  void Enqueue(const Caller& caller, uint64_t request, WaitQueue::Waiter waiter);
  void OnFound(const DeviceMemory::Usage& usage);
  void Notify(const WaitQueue::Notification& notification);
  void LookAgain();

  const Options options_;
  WaitQueue queue_;
  core::Tick due_ = core::kNever;
};

}  // namespace ravenstore::daemon
