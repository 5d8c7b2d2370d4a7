// What the planner loop does with its planner's actions: slabs, and moves between the tiers.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/ctl/session.h"
#include "tests/client/test_stream.h"
#include "tests/daemon/daemon_process.h"

namespace ravenstore::daemon {
namespace {

constexpr uint64_t kBytes = MiB(5) + 512;  // several slabs and chunks

class LoopActionsTest : public testing::Test {
 protected:
  Store Connect(uint64_t device_budget) {
    return Store::connect(
        {.socket = daemon_.socket(), .name = "loop_actions_test", .device_budget = device_budget});
  }
  static void Fill(void* data, uint64_t seed) {
    auto* words = static_cast<uint64_t*>(data);
    for (uint64_t i = 0; i < kBytes / 8; ++i) words[i] = seed * 0x9e3779b97f4a7c15u + i;
  }
  static bool Holds(const void* data, uint64_t seed) {
    const auto* words = static_cast<const uint64_t*>(data);
    for (uint64_t i = 0; i < kBytes / 8; ++i) {
      if (words[i] != seed * 0x9e3779b97f4a7c15u + i) return false;
    }
    return true;
  }

  DaemonProcess daemon_{{"--devices", "2", "--device-total", "64MiB"}};
};

TEST_F(LoopActionsTest, ADirtyTensorMovesToAnotherDevice) {
  Store store = Connect(MiB(16));
  Tensor tensor = store.create(kBytes, {.device = 0});
  Fill(tensor.data(), 1);
  store.put(tensor, nullptr);
  const void* data = store.get(tensor, nullptr, {.device = 1, .blocking = true});
  EXPECT_TRUE(Holds(data, 1));
  EXPECT_EQ(tensor.device(), 1);
  EXPECT_EQ(store.stats().bytes_out, 0u) << "it goes from device to device";
  EXPECT_EQ(store.stats().bytes_in, kBytes);
}

TEST_F(LoopActionsTest, ACleanTensorMovesToAnotherDeviceWithoutACopyOut) {
  Store store = Connect(MiB(16));
  Tensor tensor = store.create(kBytes, {.device = 0});
  Fill(tensor.data(), 2);
  store.put(tensor, nullptr);
  store.get(tensor, nullptr, {.access = Access::kReadOnly, .device = 1, .blocking = true});
  store.put(tensor, nullptr);
  const uint64_t out = store.stats().bytes_out;
  const void* data =
      store.get(tensor, nullptr, {.access = Access::kReadOnly, .device = 0, .blocking = true});
  EXPECT_TRUE(Holds(data, 2));
  EXPECT_EQ(tensor.device(), 0);
  EXPECT_EQ(store.stats().bytes_out, out);
}

TEST_F(LoopActionsTest, WritesOnEachDeviceAreCarriedAlong) {
  Store store = Connect(MiB(16));
  Tensor tensor = store.create(kBytes, {.device = 0});
  Fill(tensor.data(), 0);
  store.put(tensor, nullptr);
  for (uint64_t round = 1; round <= 10; ++round) {
    const int device = static_cast<int>(round % 2);
    void* data = store.get(tensor, nullptr, {.device = device, .blocking = true});
    ASSERT_TRUE(Holds(data, round - 1)) << "round " << round;
    ASSERT_EQ(tensor.device(), device);
    Fill(data, round);
    store.put(tensor, nullptr);
  }
}

TEST_F(LoopActionsTest, AnAwayTensorComesToTheDeviceThatAsks) {
  Store store = Connect(MiB(8));
  Tensor tensor = store.create(kBytes, {.device = 0});
  Fill(tensor.data(), 3);
  store.put(tensor, nullptr);
  Tensor other = store.create(kBytes, {.device = 0});  // pushes the first out
  const void* data = store.get(tensor, nullptr, {.device = 1, .blocking = true});
  EXPECT_TRUE(Holds(data, 3));
  EXPECT_EQ(tensor.device(), 1);
}

TEST_F(LoopActionsTest, AMoveToAFullDeviceFailsInBoundAndKeepsTheTensor) {
  Store store = Connect(MiB(8));
  Tensor tensor = store.create(kBytes, {.device = 0});
  Fill(tensor.data(), 4);
  store.put(tensor, nullptr);
  Tensor full = store.create(MiB(8), {.device = 1});
  EXPECT_THROW(store.get(tensor, nullptr, {.device = 1, .timeout = std::chrono::milliseconds(100)}),
               OutOfMemory);
  EXPECT_TRUE(Holds(store.get(tensor, nullptr, {.blocking = true}), 4));
  EXPECT_EQ(tensor.device(), 0);
}

// A get elsewhere that is given up while the tensor still comes, and another where it comes: both
// wait for the same copy.
TEST_F(LoopActionsTest, ACopyThatTwoGetsWaitForArrivesForBoth) {
  DaemonProcess slow(
      {"--devices", "2", "--device-total", "64MiB", "--link-bytes-per-second", "50e6"});
  const TestStream stream;  // before the tensor that it frees
  Store store = Store::connect(
      {.socket = slow.socket(), .name = "loop_actions_test", .device_budget = MiB(8)});
  Tensor tensor = store.create(kBytes, {.device = 0});
  Fill(tensor.data(), 5);
  store.put(tensor, nullptr);
  store.free(store.create(MiB(7), {.device = 0}), nullptr);
  store.get(tensor, stream);
  store.put(tensor, stream);
  EXPECT_THROW(store.get(tensor, stream, {.device = 1, .timeout = std::chrono::milliseconds(0)}),
               Error);
  EXPECT_TRUE(Holds(store.get(tensor, stream, {.blocking = true}), 5));
}

TEST_F(LoopActionsTest, ADeviceThatIsNotThereIsNamed) {
  Store store = Connect(MiB(8));
  Tensor tensor = store.create(KiB(4));
  store.put(tensor, nullptr);
  for (const int device : {2, 100}) {
    EXPECT_THROW(store.create(KiB(4), {.device = device}), Error);
    EXPECT_THROW(store.get(tensor, nullptr, {.device = device}), Error);
  }
  EXPECT_NE(store.get(tensor, nullptr), nullptr);
}

// Each client's slabs are its own, but the device's room is everybody's.
TEST_F(LoopActionsTest, ADeviceThatIsFullOfAnothersSlabsIsShared) {
  Store first = Connect(0);
  std::vector<Tensor> tensors;
  for (uint64_t i = 0; i < 12; ++i) {
    tensors.push_back(first.create(kBytes));
    Fill(tensors.back().data(), i);
    first.put(tensors.back(), nullptr);
  }
  Store second = Connect(0);
  Tensor large = second.create(MiB(40));
  std::memset(large.data(), 1, MiB(40));
  second.free(std::move(large), nullptr);
  for (uint64_t i = 0; i < 12; ++i) {
    EXPECT_TRUE(Holds(first.get(tensors[i], nullptr, {.blocking = true}), i)) << i;
    first.put(tensors[i], nullptr, {.not_modified = true});
  }
}

// Two that fill the device, of which the first leaves for whatever comes.
class IncrementalEvictionTest : public testing::Test {
 protected:
  static constexpr uint64_t kLarge = MiB(128);
  static constexpr uint64_t kSmall = MiB(16);

  void Fill(const std::vector<std::string>& flags) {
    std::vector<std::string> all = {"--device-total", "192MiB"};
    all.insert(all.end(), flags.begin(), flags.end());
    daemon_.emplace(all);
    store_ = Store::connect({.socket = daemon_->socket(), .name = "parts_test"});
    large_ = store_.create(kLarge);
    Write(large_.data());
    store_.put(large_, nullptr, {.order = 2});
    other_ = store_.create(kLarge / 2);
    store_.put(other_, nullptr, {.order = 1});
  }
  void Write(void* data) {
    ++seed_;
    auto* words = static_cast<uint64_t*>(data);
    for (uint64_t i = 0; i < kLarge / 8; ++i) words[i] = seed_ * 0x9e3779b97f4a7c15u + i;
  }
  bool Holds(const void* data) const {
    const auto* words = static_cast<const uint64_t*>(data);
    for (uint64_t i = 0; i < kLarge / 8; ++i) {
      if (words[i] != seed_ * 0x9e3779b97f4a7c15u + i) return false;
    }
    return true;
  }

  std::optional<DaemonProcess> daemon_;
  Store store_;
  Tensor large_;
  Tensor other_;
  uint64_t seed_ = 0;
};

TEST_F(IncrementalEvictionTest, ASmallCreateDoesNotWaitForAllOfALargeTensor) {
  Fill({"--link-bytes-per-second", "50e6"});  // all of it takes 2.7 s, a part 0.3 s
  auto admin = client::ctl::Session::Open(daemon_->socket(), std::chrono::seconds(30));
  ASSERT_TRUE(admin.ok());
  Tensor small = store_.create(kSmall);
  const auto large = admin->Explain(large_.id());
  ASSERT_TRUE(large.ok());
  EXPECT_EQ(large->tensor().state(), "away") << "a page is";
  EXPECT_LT(store_.stats().bytes_out, kLarge / 2);
  std::memset(small.data(), 1, kSmall);
  store_.free(std::move(small), nullptr);
  EXPECT_TRUE(Holds(store_.get(large_, nullptr, {.blocking = true})));
}

TEST_F(IncrementalEvictionTest, WhatGaveItsRoomAwayComesBackWhole) {
  Fill({});
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    std::vector<Tensor> small;
    for (int i = 0; i < 1 + round % 4; ++i) {
      small.push_back(store_.create(kSmall));
      std::memset(small.back().data(), round + i, kSmall);
    }
    if (round % 2 == 0) small.clear();  // the get does not wait for them then
    for (Tensor& tensor : small) store_.put(tensor, nullptr, {.order = 9});
    void* data = store_.get(large_, nullptr, {.blocking = true});
    ASSERT_TRUE(Holds(data));
    Write(data);
    store_.put(large_, nullptr, {.order = 2});
  }
}

}  // namespace
}  // namespace ravenstore::daemon
