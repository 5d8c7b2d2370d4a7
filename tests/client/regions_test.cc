#include "client/regions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/daemon/daemon_process.h"
#include "tests/daemon/pattern.h"

namespace ravenstore::client {
namespace {

using daemon::DaemonProcess;
using daemon::FillPattern;
using daemon::HoldsPattern;
using testing::HasSubstr;

class RegionsTest : public testing::Test {
 protected:
  static ConnectOptions Options(const DaemonProcess& daemon, uint64_t host_budget = 0) {
    return {.socket = daemon.socket(), .name = "weights", .host_budget = host_budget};
  }
  static void* Allocate(Region& region, uint64_t bytes) {
    Region::Enter(&region);
    void* const address = Region::AllocateInCurrent(bytes, 0);
    Region::Enter(nullptr);
    return address;
  }

  DaemonProcess daemon_{{"--page", "2MiB", "--device-total", "64MiB", "--pool-size", "128MiB"}};
  Region region_{Options(daemon_)};
};

TEST_F(RegionsTest, PointersAreValidAfterEachWake) {
  std::vector<uint8_t*> addresses;
  for (uint64_t i = 0; i < 20; ++i) {
    addresses.push_back(static_cast<uint8_t*>(Allocate(region_, KiB(512) * (1 + i % 3))));
    FillPattern(addresses.back(), KiB(512), i);
  }
  for (int cycle = 0; cycle < 20; ++cycle) {
    EXPECT_GE(region_.Sleep({}), MiB(19));
    EXPECT_TRUE(region_.view().is_asleep);
    region_.Wake({});
    for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(HoldsPattern(addresses[i], KiB(512), i));
  }
  EXPECT_EQ(region_.view().allocations, 20u);
  for (uint8_t* address : addresses) EXPECT_TRUE(Region::Free(address));
  EXPECT_FALSE(Region::Free(addresses.front())) << "it is freed";
  EXPECT_EQ(region_.view().bytes, 0u);
}

TEST_F(RegionsTest, AThreadThatIsInNoRegionGetsNothing) {
  EXPECT_EQ(Region::AllocateInCurrent(MiB(1), 0), nullptr);
  Region::Enter(&region_);
  std::thread([] {
    EXPECT_EQ(Region::Current(), nullptr);
    EXPECT_EQ(Region::AllocateInCurrent(MiB(1), 0), nullptr);
  }).join();
  EXPECT_EQ(Region::Current(), &region_);
  Region::Enter(nullptr);
}

TEST_F(RegionsTest, AnAddressIsOfTheRegionThatHasIt) {
  auto* const weights = static_cast<uint8_t*>(Allocate(region_, MiB(4)));
  EXPECT_EQ(Region::Of(weights + MiB(4) - 1), &region_);
  region_.Sleep({});
  EXPECT_EQ(Region::Of(weights), &region_);
  EXPECT_EQ(Region::Of(weights + MiB(4)), nullptr);
  EXPECT_EQ(Region::Of(&region_), nullptr);
  EXPECT_TRUE(Region::Free(weights));
  EXPECT_EQ(Region::Of(weights), nullptr);
}

TEST_F(RegionsTest, BytesThatNeedNotBeKeptAreNotCopied) {
  void* const cache = Allocate(region_, MiB(40));
  EXPECT_GE(region_.Sleep({.keeps_bytes = false}), MiB(40));
  Region other(Options(daemon_));
  void* const theirs = Allocate(other, MiB(60));
  ASSERT_NE(theirs, nullptr) << "the memory went back";
  EXPECT_TRUE(Region::Free(theirs));
  region_.Wake({});
  FillPattern(cache, MiB(40), 1);
  region_.Sleep({});
  region_.Wake({});
  EXPECT_TRUE(HoldsPattern(cache, MiB(40), 1)) << "they are kept now";
}

TEST_F(RegionsTest, WhatIsUnchangedIsWhatItWas) {
  void* const weights = Allocate(region_, MiB(16));
  FillPattern(weights, MiB(16), 1);
  region_.Sleep({});
  for (int i = 0; i < 3; ++i) {
    region_.Wake({});
    EXPECT_TRUE(HoldsPattern(weights, MiB(16), 1));
    region_.Sleep({.unchanged = true});
  }
  region_.Wake({});
  EXPECT_TRUE(HoldsPattern(weights, MiB(16), 1));
}

TEST_F(RegionsTest, AWakeWithoutRoomMayBeTriedAgain) {
  void* const weights = Allocate(region_, MiB(40));
  FillPattern(weights, MiB(40), 1);
  region_.Sleep({});
  {
    Region other(Options(daemon_));
    void* const theirs = Allocate(other, MiB(60));
    ASSERT_NE(theirs, nullptr);
    EXPECT_THROW(region_.Wake({.timeout = std::chrono::milliseconds(50)}), Error);
    EXPECT_TRUE(region_.view().is_asleep);
  }
  region_.Wake({});
  EXPECT_TRUE(HoldsPattern(weights, MiB(40), 1));
}

TEST_F(RegionsTest, AllocationsThatComeInOrderAreWaitedForOneByOne) {
  std::vector<uint8_t*> addresses;
  for (uint64_t i = 0; i < 12; ++i) {
    addresses.push_back(static_cast<uint8_t*>(Allocate(region_, MiB(2))));
    FillPattern(addresses.back(), MiB(2), i);
  }
  for (int cycle = 0; cycle < 10; ++cycle) {
    region_.Sleep({});
    EXPECT_THROW(Region::Await(addresses[0], nullptr), Error) << "it is asleep";
    region_.Wake({.in_order = true});
    EXPECT_FALSE(region_.view().is_asleep);
    const uint64_t waited = cycle % 2 == 0 ? 12 : 5;
    for (uint64_t i = 0; i < waited; ++i) {
      Region::Await(addresses[i] + MiB(1), nullptr);
      ASSERT_TRUE(HoldsPattern(addresses[i], MiB(2), i));
      Region::Await(addresses[i], nullptr);
      FillPattern(addresses[i], MiB(2), i);
    }
    if (cycle % 3 == 0) continue;  // the sleep waits for the rest
    region_.Wake({});
    for (uint64_t i = 0; i < 12; ++i) ASSERT_TRUE(HoldsPattern(addresses[i], MiB(2), i));
    Region::Await(addresses[0], nullptr);
  }
  EXPECT_THROW(Region::Await(nullptr, nullptr), Error) << "of no region";
}

TEST_F(RegionsTest, WhatHasNoRoomInAWakeInOrderMayBeWaitedForAgain) {
  auto* const first = static_cast<uint8_t*>(Allocate(region_, MiB(10)));
  auto* const second = static_cast<uint8_t*>(Allocate(region_, MiB(30)));
  auto* const freed = static_cast<uint8_t*>(Allocate(region_, MiB(2)));
  FillPattern(first, MiB(10), 1);
  FillPattern(second, MiB(30), 2);
  region_.Sleep({});
  {
    Region other(Options(daemon_));
    ASSERT_NE(Allocate(other, MiB(40)), nullptr);
    const std::chrono::milliseconds short_wait(50);
    region_.Wake({.in_order = true, .timeout = short_wait});
    Region::Await(first, nullptr);
    EXPECT_TRUE(HoldsPattern(first, MiB(10), 1));
    EXPECT_THROW(Region::Await(second, nullptr, short_wait), Error);
    EXPECT_TRUE(Region::Free(freed));
    FillPattern(first, MiB(10), 3);
    EXPECT_THROW(region_.Wake({.timeout = short_wait}), Error);
    EXPECT_FALSE(region_.view().is_asleep) << "the first one is in use";
    region_.Sleep({.timeout = short_wait});
    region_.Wake({.in_order = true, .timeout = short_wait});
    Region::Await(first, nullptr);
    EXPECT_TRUE(HoldsPattern(first, MiB(10), 3));
  }
  Region::Await(second, nullptr);
  EXPECT_TRUE(HoldsPattern(second, MiB(30), 2));
}

TEST_F(RegionsTest, ASleepWithoutRoomForCopiesLeavesItAwake) {
  Region region(Options(daemon_, MiB(8)));
  void* const weights = Allocate(region, MiB(12));
  FillPattern(weights, MiB(12), 1);
  try {
    region.Sleep({.timeout = std::chrono::milliseconds(100)});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), RAVENSTORE_TIMED_OUT);
    EXPECT_THAT(error.what(), HasSubstr("had not left the devices in time"));
  }
  EXPECT_FALSE(region.view().is_asleep);
  EXPECT_TRUE(HoldsPattern(weights, MiB(12), 1));
}

TEST_F(RegionsTest, WhatIsFreedOrAskedForWhileItSleeps) {
  void* const freed = Allocate(region_, MiB(20));
  region_.Sleep({});
  EXPECT_EQ(Allocate(region_, MiB(1)), nullptr);
  EXPECT_THAT(ravenstore_last_error(), HasSubstr("asleep"));
  EXPECT_THROW(region_.Sleep({}), Error);
  EXPECT_TRUE(Region::Free(freed));
  region_.Wake({});
  EXPECT_NE(Allocate(region_, MiB(60)), nullptr);
}

TEST_F(RegionsTest, WhatStaysKeepsItsRegionAwake) {
  auto* const registered = static_cast<uint8_t*>(Allocate(region_, MiB(4)));
  FillPattern(registered, MiB(4), 1);
  Region::Keep(registered + MiB(1), true);
  EXPECT_THROW(region_.Sleep({}), Error);
  EXPECT_THAT(ravenstore_last_error(), HasSubstr("is kept in place"));
  EXPECT_TRUE(HoldsPattern(registered, MiB(4), 1));
  Region::Keep(registered, false);
  region_.Sleep({});
  EXPECT_THROW(Region::Keep(registered, true), Error) << "it is not in use";
  region_.Wake({});
  EXPECT_TRUE(HoldsPattern(registered, MiB(4), 1));
  EXPECT_THROW(Region::Keep(registered + MiB(4), true), Error) << "of no region";
  EXPECT_THROW(Region::Keep(nullptr, true), Error);
}

TEST_F(RegionsTest, BytesAreReadWhileItSleeps) {
  std::vector<uint8_t*> addresses;
  for (uint64_t i = 0; i < 4; ++i) {
    addresses.push_back(static_cast<uint8_t*>(Allocate(region_, MiB(8))));
    FillPattern(addresses.back(), MiB(8), i);
  }
  region_.Sleep({});
  Region other(Options(daemon_));
  ASSERT_NE(Allocate(other, MiB(54)), nullptr) << "one of them has room on the device";
  std::vector<uint8_t> read(MiB(8));
  for (uint64_t i = 0; i < 4; ++i) {
    Region::Read(addresses[i], MiB(8), read.data());
    EXPECT_TRUE(HoldsPattern(read.data(), MiB(8), i));
  }
  std::vector<uint8_t> part(KiB(3));
  Region::Read(addresses[2] + MiB(1), part.size(), part.data());
  Region::Read(addresses[2], MiB(8), read.data());
  EXPECT_EQ(std::memcmp(part.data(), read.data() + MiB(1), part.size()), 0);
  EXPECT_TRUE(region_.view().is_asleep);
  ASSERT_NE(Allocate(other, MiB(8)), nullptr) << "it holds no memory of the device";
}

TEST_F(RegionsTest, BytesThatCannotBeRead) {
  auto* const weights = static_cast<uint8_t*>(Allocate(region_, MiB(40)));
  uint8_t byte = 0;
  const auto code = [&](const uint8_t* address, uint64_t bytes) {
    return ravenstore_region_read(address, bytes, &byte, 50'000'000);
  };
  EXPECT_EQ(code(weights, 1), RAVENSTORE_WRONG_STATE) << "it is awake";
  region_.Sleep({});
  EXPECT_EQ(code(nullptr, 1), RAVENSTORE_NOT_FOUND);
  EXPECT_EQ(code(weights + MiB(40), 1), RAVENSTORE_NOT_FOUND);
  EXPECT_EQ(code(weights, MiB(40) + 1), RAVENSTORE_NOT_FOUND);
  EXPECT_EQ(ravenstore_region_read(weights, 1, nullptr, 0), RAVENSTORE_INVALID_ARGUMENT);
  region_.Wake({});
  region_.Sleep({.keeps_bytes = false});
  EXPECT_EQ(code(weights, 1), RAVENSTORE_NOT_FOUND) << "it sleeps without its bytes";
  region_.Wake({});
  FillPattern(weights, MiB(40), 1);
  region_.Sleep({});
  {
    Region other(Options(daemon_));
    ASSERT_NE(Allocate(other, MiB(40)), nullptr);
    EXPECT_NE(code(weights, 1), RAVENSTORE_OK) << "there is no room";
    EXPECT_TRUE(region_.view().is_asleep);
  }
  region_.Wake({});
  EXPECT_TRUE(HoldsPattern(weights, MiB(40), 1));
}

TEST_F(RegionsTest, AChildHasNoMemoryOfARegion) {
  void* const weights = Allocate(region_, MiB(1));
  Region::Enter(&region_);
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(Region::AllocateInCurrent(MiB(1), 0) == nullptr && Region::Free(weights) ? 0 : 1);
  Region::Enter(nullptr);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(region_.view().allocations, 1u);
}

TEST_F(RegionsTest, TheAbiRefusesNonsense) {
  EXPECT_EQ(ravenstore_region_open(nullptr, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  ravenstore_region_t* none = nullptr;
  const ravenstore_connect_options_t without_size{};
  EXPECT_EQ(ravenstore_region_open(&without_size, &none), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_region_sleep(nullptr, 0, 0, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_region_wake(nullptr, 0, 0, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_region_get_info(nullptr, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  auto* const region = reinterpret_cast<ravenstore_region_t*>(&region_);
  EXPECT_EQ(ravenstore_region_sleep(region, 8, 0, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_region_wake(region, 4, 0, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_region_await(nullptr, nullptr, 0), RAVENSTORE_NOT_FOUND);
  EXPECT_EQ(ravenstore_region_alloc(-1, 0, nullptr), nullptr);
  EXPECT_EQ(ravenstore_region_free(nullptr, 0, 0, nullptr), 0);
  EXPECT_EQ(ravenstore_region_enter(region), nullptr);
  EXPECT_EQ(ravenstore_region_enter(nullptr), region);
}

}  // namespace
}  // namespace ravenstore::client
