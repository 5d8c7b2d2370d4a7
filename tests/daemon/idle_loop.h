// A planner loop that no thread runs: the test's thread is its own, and what is posted to it runs
// when the test says so.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/types.h"
#include "daemon/loop.h"
#include "daemon/threads.h"
#include "device/device.h"

namespace ravenstore::daemon {

class IdleLoop {
 public:
  static constexpr core::Bytes kDevice = core::MiB(64);

  IdleLoop() {
    LoopOptions options;
    options.store.device_granularity = devices_.front()->granularity();
    options.store.device_capacity = {kDevice};
    options.store.arena = {kDevice};
    options.store.host_capacity = core::MiB(128);
    options.store.links = {core::LinkModel{}};
    auto loop = Loop::Create(std::move(options), devices_, &workers_, {});
    RAVEN_CHECK(loop.ok());
    loop_ = std::move(*loop);
  }

  Loop* get() { return loop_.get(); }
  Loop* operator->() { return loop_.get(); }
  WorkerPool* workers() { return &workers_; }
  const device::Devices& devices() const { return devices_; }
  void RunPosts() { loop_->mailbox().RunSome(loop_->mailbox().size()); }

 private:
  const device::Devices devices_ = device::OpenHostDevices({.count = 1, .total = kDevice});
  std::unique_ptr<Loop> loop_;
  WorkerPool workers_{"worker", 1};  // first to go: its work posts to the loop
};

}  // namespace ravenstore::daemon
