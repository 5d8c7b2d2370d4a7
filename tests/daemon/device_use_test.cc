#include "daemon/device_use.h"

#include <gtest/gtest.h>

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::GiB;

constexpr core::Tick kNow{std::chrono::seconds(9)};

MemoryWatch::Seen SomethingSeen() {
  MemoryWatch::Seen seen;
  seen.at = kNow - core::Duration(40);
  seen.free = GiB(40);
  seen.least_free = GiB(30);
  seen.idle = GiB(20);
  seen.context = GiB(1);
  seen.processes = {{4711, GiB(12)}, {4712, Bytes{0}}};
  return seen;
}

constexpr DeviceUse kUse{.total = GiB(80), .store = GiB(10), .peer_pool = GiB(2), .jobs = GiB(3)};

proto::DeviceUse Shown(const DeviceUse& use, const MemoryWatch::Seen& seen) {
  proto::DeviceUse shown;
  FillDevice(use, seen, kNow, /*with_processes=*/true, &shown);
  return shown;
}

TEST(DeviceUseTest, WhatTheStoreAndItsJobsDoNotUseIsOthers) {
  const proto::DeviceUse shown = Shown(kUse, SomethingSeen());
  EXPECT_EQ(shown.total(), GiB(80).count());
  EXPECT_EQ(shown.fault(), "");
  EXPECT_EQ(shown.store(), GiB(10).count());
  EXPECT_EQ(shown.peer_pool(), GiB(2).count());
  EXPECT_EQ(shown.context(), GiB(1).count());
  EXPECT_EQ(shown.jobs(), GiB(3).count());
  EXPECT_EQ(shown.others(), GiB(24).count());
  EXPECT_EQ(shown.free(), GiB(40).count());
  EXPECT_EQ(shown.least_free(), GiB(30).count());
  EXPECT_EQ(shown.idle(), GiB(20).count());
  EXPECT_EQ(shown.age_ns(), 40u);
  ASSERT_EQ(shown.processes_size(), 2);
  EXPECT_EQ(shown.processes(0).pid(), 4711u);
  EXPECT_EQ(shown.processes(0).bytes(), GiB(12).count());
}

TEST(DeviceUseTest, WhatIsHarvestedIsShownWithItsReturns) {
  EXPECT_FALSE(Shown(kUse, SomethingSeen()).has_harvest());
  DeviceUse use = kUse;
  use.harvest = Harvest::View{.most = GiB(6),
                              .used = GiB(1),
                              .counts = {.returns = 3,
                                         .missed = 1,
                                         .bytes = GiB(7),
                                         .last = std::chrono::milliseconds(20),
                                         .longest = std::chrono::milliseconds(90)}};
  const proto::HarvestUse shown = Shown(use, SomethingSeen()).harvest();
  EXPECT_EQ(shown.most(), GiB(6).count());
  EXPECT_EQ(shown.used(), GiB(1).count());
  EXPECT_EQ(shown.returns(), 3u);
  EXPECT_EQ(shown.missed(), 1u);
  EXPECT_EQ(shown.bytes(), GiB(7).count());
  EXPECT_EQ(shown.last_ns(), 20'000'000u);
  EXPECT_EQ(shown.longest_ns(), 90'000'000u);
}

TEST(DeviceUseTest, JobsThatClaimMoreThanIsUsedHaveTheRest) {
  DeviceUse use = kUse;
  use.jobs = Bytes(UINT64_MAX);
  const proto::DeviceUse shown = Shown(use, SomethingSeen());
  EXPECT_EQ(shown.jobs(), GiB(27).count());
  EXPECT_EQ(shown.others(), 0u);
}

TEST(DeviceUseTest, SlabsMadeAfterTheLookAreNotOthers) {
  DeviceUse use = kUse;
  use.store = GiB(60);
  const proto::DeviceUse shown = Shown(use, SomethingSeen());
  EXPECT_EQ(shown.store(), GiB(60).count());
  EXPECT_EQ(shown.jobs(), 0u);
  EXPECT_EQ(shown.others(), 0u);
}

TEST(DeviceUseTest, MoreThanAllIsFreeWhereTheDriverCountsAnotherTotal) {
  MemoryWatch::Seen seen = SomethingSeen();
  seen.free = GiB(81);
  EXPECT_EQ(Shown(kUse, seen).others(), 0u);
}

TEST(DeviceUseTest, WhatIsNotKnownHasNoFigures) {
  MemoryWatch::Seen seen = SomethingSeen();
  seen.fault = "no NVML";
  const proto::DeviceUse shown = Shown(kUse, seen);
  EXPECT_EQ(shown.fault(), "no NVML");
  EXPECT_EQ(shown.store(), GiB(10).count());
  EXPECT_EQ(shown.jobs(), GiB(3).count());
  EXPECT_EQ(shown.others(), 0u);
  EXPECT_EQ(shown.free(), 0u);
}

TEST(DeviceUseTest, WhetherItComputesIsShownWhateverIsKnownOfItsMemory) {
  MemoryWatch::Seen seen = SomethingSeen();
  seen.fault = "no NVML";
  EXPECT_TRUE(Shown(kUse, seen).busy());
  EXPECT_FALSE(Shown(kUse, seen).has_utilization());
  seen.busy = false;
  seen.utilization = 0;
  EXPECT_FALSE(Shown(kUse, seen).busy());
  EXPECT_TRUE(Shown(kUse, seen).has_utilization());
  EXPECT_EQ(Shown(kUse, seen).utilization(), 0u);
}

TEST(DeviceUseTest, ProcessesAreNamedToThoseAloneWhoMaySeeThem) {
  proto::DeviceUse shown;
  FillDevice(kUse, SomethingSeen(), kNow, /*with_processes=*/false, &shown);
  EXPECT_EQ(shown.processes_size(), 0);
  EXPECT_EQ(shown.others(), GiB(24).count());
}

}  // namespace
}  // namespace ravenstore::daemon
