// A store that sleeps: its tensors are off the device, and come back where they were.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/pattern.h"
#include "tests/daemon/stats_of.h"

namespace ravenstore::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

class SleepTest : public testing::Test {
 protected:
  SleepTest() : store_(Connect("sleeper")) {}

  Store Connect(const std::string& name, uint64_t host_budget = 0) {
    return Store::connect({.socket = daemon_.socket(),
                           .name = name,
                           .host_budget = host_budget,
                           .fixed_addresses = true});
  }
  static Tensor Make(Store& store, uint64_t bytes, uint64_t seed) {
    Tensor tensor = store.create(bytes, {.name = "weights"});
    FillPattern(tensor.data(), bytes, seed);
    return tensor;
  }
  static void ExpectCode(ravenstore_code_t code, const std::string& words, const auto& call) {
    try {
      call();
      FAIL() << "it was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }

  DaemonProcess daemon_{{"--page", "2MiB", "--device-total", "64MiB", "--pool-size", "128MiB"}};
  Store store_;
};

TEST_F(SleepTest, AllIsBackAtTheSameAddressesAfterEachOfManySleeps) {
  const std::vector<uint64_t> sizes = {512, 4096, KiB(64), KiB(300), MiB(1), MiB(3), MiB(7) + 512};
  std::vector<Tensor> tensors;
  std::vector<void*> addresses;
  std::vector<uint64_t> seeds;
  for (int i = 0; i < 28; ++i) {
    const uint64_t size = sizes[static_cast<size_t>(i) % sizes.size()];
    tensors.push_back(Make(store_, size, static_cast<uint64_t>(i)));
    addresses.push_back(tensors.back().data());
    seeds.push_back(static_cast<uint64_t>(i));
  }
  for (uint64_t cycle = 1; cycle <= 100; ++cycle) {
    for (Tensor& tensor : tensors) store_.put(tensor, nullptr);
    EXPECT_GT(store_.sleep(), MiB(30));
    EXPECT_EQ(HeldOfDevices(daemon_), 0u);
    store_.wake();
    for (size_t i = 0; i < tensors.size(); ++i) {
      ASSERT_EQ(store_.get(tensors[i], nullptr), addresses[i]);
      ASSERT_EQ(WrongBytes(addresses[i], tensors[i].size(), seeds[i]), 0u) << i << ", " << cycle;
      if ((i + cycle) % 3 > 0) continue;
      seeds[i] += 1000;
      FillPattern(addresses[i], tensors[i].size(), seeds[i]);
    }
  }
}

TEST_F(SleepTest, CallsOfAStoreThatSleepsAreRefusedInWords) {
  Tensor tensor = Make(store_, MiB(3), 1);
  ExpectCode(RAVENSTORE_WRONG_STATE, "\"weights\" (3145728 bytes) is in use: put it first",
             [&] { store_.sleep(); });
  store_.put(tensor, nullptr);
  store_.sleep();
  ExpectCode(RAVENSTORE_WRONG_STATE, "asleep already", [&] { store_.sleep(); });
  ExpectCode(RAVENSTORE_WRONG_STATE, "wake it first", [&] { store_.get(tensor, nullptr); });
  ExpectCode(RAVENSTORE_WRONG_STATE, "wake it first", [&] { store_.create(MiB(1)); });
  EXPECT_FALSE(tensor.ready());
  store_.wake();
  store_.wake();
  EXPECT_TRUE(HoldsPattern(store_.get(tensor, nullptr), MiB(3), 1));
}

TEST_F(SleepTest, WhatIsFreedWhileItSleepsIsReleased) {
  Tensor tensor = Make(store_, MiB(3), 1);
  store_.put(tensor, nullptr);
  store_.sleep();
  store_.free(std::move(tensor), nullptr);
  store_.wake();
  Tensor all = store_.create(MiB(60));
  EXPECT_NE(all.data(), nullptr);
}

TEST_F(SleepTest, WhatIsUnmodifiedIsCopiedOnce) {
  Tensor tensor = Make(store_, MiB(16), 1);
  store_.put(tensor, nullptr);
  store_.sleep();
  const uint64_t once = store_.stats().bytes_out;
  EXPECT_GE(once, MiB(16));
  for (int i = 0; i < 5; ++i) {
    store_.wake();
    EXPECT_TRUE(
        HoldsPattern(store_.get(tensor, nullptr, {.access = Access::kReadOnly}), MiB(16), 1));
    store_.put(tensor, nullptr);
    store_.sleep();
  }
  EXPECT_EQ(store_.stats().bytes_out, once);
}

TEST_F(SleepTest, WhatCanBeRecomputedIsDropped) {
  Tensor cache = Make(store_, MiB(16), 1);
  void* const address = cache.data();
  store_.put(cache, nullptr, {.recompute = nanoseconds(1)});
  EXPECT_GE(store_.sleep(), MiB(16));
  EXPECT_EQ(store_.stats().bytes_out, 0u);
  EXPECT_EQ(HeldOfDevices(daemon_), 0u);
  store_.wake();
  EXPECT_EQ(store_.get(cache, nullptr), address);
  EXPECT_TRUE(cache.must_recompute());
}

TEST_F(SleepTest, OthersHaveItsMemoryMeanwhile) {
  Tensor own = Make(store_, MiB(48), 1);
  store_.put(own, nullptr);
  store_.sleep();
  Store other = Connect("other");
  Tensor theirs = Make(other, MiB(60), 2);
  store_.wake();
  ExpectCode(RAVENSTORE_OUT_OF_MEMORY, "client 2 holds 60.0 MiB (60.0 MiB in use)",
             [&] { store_.get(own, nullptr, {.timeout = milliseconds(50)}); });
  other.put(theirs, nullptr);
  EXPECT_TRUE(HoldsPattern(store_.get(own, nullptr), MiB(48), 1));
  store_.put(own, nullptr);
  EXPECT_TRUE(HoldsPattern(other.get(theirs, nullptr), MiB(60), 2));
}

TEST_F(SleepTest, WithoutRoomForCopiesItStaysAwake) {
  Store store = Connect("small", MiB(8));
  Tensor large = Make(store, MiB(4), 1);
  std::vector<Tensor> more;
  for (uint64_t i = 0; i < 3; ++i) more.push_back(Make(store, MiB(2), i));
  store.put(large, nullptr);
  for (Tensor& tensor : more) store.put(tensor, nullptr);
  ExpectCode(RAVENSTORE_TIMED_OUT, "had not left the devices in time",
             [&] { store.sleep(milliseconds(100)); });
  EXPECT_TRUE(HoldsPattern(store.get(large, nullptr), MiB(4), 1));
  for (uint64_t i = 0; i < 3; ++i)
    EXPECT_TRUE(HoldsPattern(store.get(more[i], nullptr), MiB(2), i));
}

TEST_F(SleepTest, AClientThatDiesAsleepLeavesNothing) {
  {
    Store departed = Connect("gone");
    Tensor tensor = Make(departed, MiB(16), 1);
    departed.put(tensor, nullptr);
    departed.sleep();
  }
  Tensor all = store_.create(MiB(60));
  FillPattern(all.data(), all.size(), 1);
  EXPECT_TRUE(HoldsPattern(all.data(), all.size(), 1));
}

}  // namespace
}  // namespace ravenstore::daemon
