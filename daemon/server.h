// The whole daemon but its command line: devices, workers, planner loop and control socket, wired
// together.
//
//     auto server = Server::Create(config);   // serves from here on
//     (*server)->Drain();                     // once it should end
//
// Owns: everything. Threads: Create and Drain on one thread; the loop, the control socket and the
// workers have theirs, all supervised.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "core/result.h"
#include "daemon/cluster.h"
#include "daemon/config.h"
#include "daemon/control.h"
#include "daemon/loop.h"
#include "daemon/memory_watch.h"
#include "daemon/pools.h"
#include "daemon/threads.h"
#include "device/device.h"

namespace ravenstore::daemon {

// What the configuration alone says of the loop's options; the rest depends on the machine.
LoopOptions LoopOptionsOf(const Config& config);

class Server {
 public:
  // Opens the devices and the socket and starts every thread: from here on clients are served.
  // Calls `before_serving` after the last error that it can return, before any client is answered.
  // Errors: kInvalidArgument (the configuration), kUnavailable (no such device, or a daemon at the
  // socket).
  static core::Result<std::unique_ptr<Server>> Create(
      const Config& config, const std::function<void()>& before_serving = [] {});
  // The same over these devices, whatever is configured of them, and over what other nodes lend.
  static core::Result<std::unique_ptr<Server>> Create(
      const Config& config, device::Devices devices, RemoteMemory remote = {},
      const std::function<void()>& before_serving = [] {});
  // As End.
  ~Server();

  // Turns new clients away, then waits, at most as long as configured, for copies to finish,
  // clients to leave, and other nodes to empty what was lent to them. True when nothing of them was
  // left. Does not depend on the loop's answering.
  bool Drain();
  // Stops every thread; the workers finish what they were given first. Calls `at` with what it is
  // about to wait for. Twice is as good as once.
  void End(const std::function<void(const char*)>& at);

  // Takes over what may change of `wanted`, and says what did and what did not. A user's limits
  // that ravenctl set stay.
  ConfigChanges Reload(const Config& wanted);

  const Config& config() const { return config_; }
  // For tests and benchmarks that look inside: post closures to its mailbox.
  Loop& loop() { return *loop_; }
  // Of what other nodes lend; its posts are the loop's.
  std::optional<core::PoolId> remote_pool() const { return remote_pool_; }

 private:
  explicit Server(Config config) : config_(std::move(config)) {}
  core::Status Init(device::Devices devices, RemoteMemory remote,
                    const std::function<void()>& before_serving);
  // This node of a cluster; and what others lend to it.
  core::Result<RemoteMemory> MakeCluster();
  // Where there is one, once the loop runs.
  void StartCluster();
  // What the loop asks of the control thread.
  Loop::Outbox MakeOutbox();
  // With `others` in its topology.
  core::Result<LoopOptions> MakeLoopOptions(const OtherPools& others);
  // Watches the devices' memory from now on, as configured.
  core::Status MakeWatch();
  // Once the loop runs. The loop is notified of each look if devices hold others' tensors.
  void StartWatch();
  // Of the device, what is not harvested.
  core::Bytes ReserveOf(const device::Device& device) const;
  // Of the devices, as measured or configured.
  std::vector<core::LinkModel> MakeLinks() const;
  // Of every tenant, as configured now.
  core::Budgets TenantBudgets() const;
  void WarnOfExcessiveSizes() const;

  Config config_;
  std::string backend_;
  device::Devices devices_;
  std::vector<core::LinkModel> links_;  // of each
  core::Bytes largest_device_;          // of the capacities
  core::Bytes host_capacity_;
  std::map<core::PoolId, core::Pool> other_pools_;  // that follow the devices'
  std::optional<core::PoolId> remote_pool_;
  std::atomic<bool> ending_{false};
  std::unique_ptr<MemoryWatch> watch_;
  std::unique_ptr<Cluster> cluster_;  // null: this is no node of one
  // Destroyed in reverse: the workers first, which finish what the loop and the socket asked of
  // them.
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<WorkerPool> workers_;
  std::thread loop_thread_;
  std::thread control_thread_;
  std::thread watch_thread_;
};

}  // namespace ravenstore::daemon
