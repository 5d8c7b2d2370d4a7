// A whole daemon in this process, over simulated devices whose every step can go wrong.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/types.h"
#include "daemon/config.h"
#include "daemon/pools.h"
#include "daemon/server.h"
#include "device/device.h"
#include "tests/ipc/short_directory.h"

namespace ravenstore::daemon {

class FaultyServer {
 public:
  // Asked from any thread, once per step, while faults are on.
  using Fault = std::function<device::HostFault(device::HostStep)>;
  // Where the tensors of a device go in addition to the host pool.
  enum class Peers : uint8_t { kHarvested, kShare, kNone };

  struct Options {
    Peers peers = Peers::kHarvested;
    int devices = 2;
    core::Bytes device = core::MiB(16);  // of each
    core::Bytes peer = core::MiB(8);     // of each device
    core::Bytes host = core::MiB(16);
    Fault fault{};
    core::Bytes remote_budget{};
  };

  // Faults are off: it starts well. `remote` is what other nodes lend.
  explicit FaultyServer(const Options& options, RemoteMemory remote = {}) {
    Config config;
    config.socket_path = socket();
    config.backend = "host";
    config.host_check_moves = true;
    config.pool_size = options.host;
    config.remote_budget = options.remote_budget;
    config.pool_step = core::MiB(2);
    config.pool_ahead = core::MiB(2);
    // As the planner sees it, a slow way. Copies are as fast as they can be.
    config.host_bytes_per_second = 2e8;
    if (options.peers == Peers::kHarvested) {
      config.harvest_size = options.peer;
      config.harvest_reserve = core::MiB(2);
      config.harvest_sample = std::chrono::milliseconds(10);
      config.harvest_rise = core::Duration{0};
      config.harvest_step = core::MiB(2);
    } else if (options.peers == Peers::kShare) {
      config.peer_pool_size = options.peer;
    }
    device::HostOptions host{.count = options.devices, .total = options.device};
    host.others = [this](int device) {
      return std::vector<device::DeviceProcess>{
          {.pid = 1, .bytes = core::Bytes(others_[static_cast<size_t>(device)].load())}};
    };
    host.fault = [this, fault = options.fault](device::HostStep step) {
      return on_.load() && fault ? fault(step) : device::HostFault::kNone;
    };
    devices_ = device::OpenHostDevices(host);
    shares_ = options.peers == Peers::kShare ? options.peer : core::Bytes{};
    auto server = Server::Create(config, devices_, std::move(remote));
    if (!server.ok()) std::fprintf(stderr, "%s\n", core::Describe(server.error()).c_str());
    RAVEN_CHECK(server.ok());
    server_ = *std::move(server);
  }

  std::string socket() const { return directory_ / "s"; }
  Server& server() { return *server_; }
  void SetFaults(bool on) { on_.store(on); }
  // Other processes hold `bytes` of the device's memory.
  void SetOthers(int device, core::Bytes bytes) {
    others_[static_cast<size_t>(device)].store(bytes.count());
  }
  core::Bytes FreeOf(size_t device) { return *devices_[device]->FreeBytes(); }
  // What `look` says of the loop, on its thread.
  template <typename Look>
  auto Ask(Look look) {
    std::promise<decltype(look(server_->loop()))> answer;
    server_->loop().mailbox().Post([&] { answer.set_value(look(server_->loop())); });
    return answer.get_future().get();
  }
  // Aborts unless the planner's books agree.
  void CheckInvariants() {
    Ask([](Loop& loop) {
      loop.store().CheckInvariants();
      return true;
    });
  }
  // No client is left, and no byte of any; of the devices' memory no more is taken than the planner
  // knows of.
  bool IsEmpty() {
    return Ask([this](Loop& loop) {
      const StoreViews& store = loop.store();
      bool empty = loop.sessions().all().empty() && store.HostTier().used == core::Bytes{};
      for (uint16_t i = 0; i < devices_.size(); ++i) {
        const core::Bytes taken = store.Harvested(core::DeviceId{i}) + shares_;
        const core::Bytes others(others_[i].load());
        empty &= FreeOf(i) + taken + others >= devices_[i]->info().total;
      }
      for (const core::PoolId pool : store.OtherPools())
        empty &= store.OtherTier(pool).used == core::Bytes{};
      return empty;
    });
  }

 private:
  ipc::ShortDirectory directory_;
  std::atomic<bool> on_{false};
  std::array<std::atomic<uint64_t>, 8> others_{};  // by device
  core::Bytes shares_;                             // of each device
  device::Devices devices_;
  std::unique_ptr<Server> server_;  // last: its threads use the others until it ends
};

}  // namespace ravenstore::daemon
