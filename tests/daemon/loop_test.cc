// What the planner loop makes of its clients' puts, gets and frees.
#include "daemon/loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "tests/client/test_stream.h"
#include "tests/daemon/daemon_process.h"

namespace ravenstore::daemon {
namespace {

using std::chrono::milliseconds;

Store Connect(const DaemonProcess& daemon, uint64_t device_budget) {
  return Store::connect(
      {.socket = daemon.socket(), .name = "loop_test", .device_budget = device_budget});
}

TEST(LoopTest, ATensorStaysUntilTheStreamOfItsPutIsDone) {
  DaemonProcess daemon({"--slab", "2MiB"});
  TestStream gate;
  gate.Block();
  Store store = Connect(daemon, MiB(8));
  Tensor tensor = store.create(MiB(6));
  std::memset(tensor.data(), 3, MiB(6));
  store.put(tensor, gate);
  EXPECT_THROW(store.create(MiB(6), {.timeout = milliseconds(50)}), OutOfMemory);
  gate.Open();
  Tensor next = store.create(MiB(6));
  store.free(std::move(next), nullptr);
  EXPECT_EQ(static_cast<char*>(store.get(tensor, nullptr, {.blocking = true}))[MiB(6) - 1], 3);
}

TEST(LoopTest, RoomIsFreeOnlyOnceTheStreamOfItsFreeIsDone) {
  DaemonProcess daemon({"--slab", "2MiB"});
  TestStream gate;
  gate.Block();
  Store store = Connect(daemon, MiB(8));
  store.free(store.create(MiB(6)), gate);
  EXPECT_THROW(store.create(MiB(6), {.timeout = milliseconds(50)}), OutOfMemory);
  EXPECT_EQ(store.stats().tensors, 1u);
  gate.Open();
  EXPECT_NE(store.create(MiB(6)).data(), nullptr);
}

// Anonymous memory of the process.
core::Bytes Resident(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return core::KiB(std::stoull(line.substr(8)));
  }
  return {};
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(LoopTest, WhatADepartedClientTookOfTheDaemonsMemoryGoesBackToTheKernel) {
  constexpr size_t kTensors = 200'000;
  const DaemonProcess daemon({"--slab", "2MiB"});
  core::Bytes most;
  {
    Store store = Connect(daemon, MiB(256));
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < kTensors; ++i) tensors.push_back(store.create(512));
    most = Resident(daemon.pid());
  }
  // The planner keeps some tables at their largest size, for the next ones.
  EXPECT_TRUE(Eventually([&] { return Resident(daemon.pid()) + core::MiB(3) < most; }))
      << Resident(daemon.pid()).count() << " of " << most.count();
}
#endif

TEST(LoopTest, WhatIsInUseIsNeverMoved) {
  DaemonProcess daemon({"--slab", "2MiB"});
  Store store = Connect(daemon, MiB(8));
  Tensor used = store.create(MiB(4));
  auto* words = static_cast<std::atomic<uint32_t>*>(used.data());
  std::atomic<bool> done{false};
  std::thread writer([&] {
    while (!done) words->fetch_add(1);
  });
  for (int i = 0; i < 20; ++i) {
    Tensor other = store.create(MiB(3));
    store.put(other, nullptr);
    store.free(std::move(other), nullptr);
  }
  done = true;
  writer.join();
  EXPECT_EQ(used.data(), words);
}

// More accesses than a lane of the log holds, of more tensors than fit: the daemon reads the rows.
TEST(LoopTest, PutsThatFoundTheLogFullAreFoundInTheirRows) {
  DaemonProcess daemon({"--slab", "2MiB"});
  Store store = Connect(daemon, MiB(8));
  std::vector<Tensor> tensors = store.create(std::vector<uint64_t>(16, KiB(512)));
  daemon.Stop();
  for (int i = 0; i < 2000; ++i) {
    store.put(tensors[0], nullptr);
    store.get(tensors[0], nullptr);
  }
  for (auto& tensor : tensors) store.put(tensor, nullptr);
  daemon.Continue();
  Tensor large = store.create(MiB(7));
  EXPECT_NE(large.data(), nullptr);
}

// What the last entry of a full lane says decides what leaves for the request behind it.
TEST(LoopTest, ARequestFindsEveryPutThatWasLoggedBeforeIt) {
  DaemonProcess daemon({"--slab", "2MiB"});
  Store store = Connect(daemon, MiB(8));
  Tensor sooner = store.create(MiB(3));
  Tensor later = store.create(MiB(3));
  Tensor busy = store.create(KiB(512));
  daemon.Stop();
  store.put(sooner, nullptr, {.order = 1});
  constexpr int kPairs = 500;  // and the two puts: a lane has room for 1024 entries
  for (int i = 0; i < kPairs; ++i) {
    store.put(busy, nullptr);
    store.get(busy, nullptr);
  }
  store.put(later, nullptr, {.order = 50});
  daemon.Continue();
  const Tensor next = store.create(MiB(3));
  EXPECT_TRUE(sooner.ready());
  EXPECT_FALSE(later.ready());
}

}  // namespace
}  // namespace ravenstore::daemon
