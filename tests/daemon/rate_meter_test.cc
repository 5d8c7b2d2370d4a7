#include "daemon/rate_meter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace ravenstore::daemon {
namespace {

using core::MiB;
using std::chrono::milliseconds;

core::Tick At(int ms) {
  return core::Tick(milliseconds(ms));
}

TEST(RateMeterTest, TransfersSideBySideCountTheirTimeOnce) {
  RateMeter meter;
  meter.Begin(At(0));
  meter.Begin(At(100));
  meter.End(At(400), MiB(20));
  meter.End(At(500), MiB(30));
  EXPECT_DOUBLE_EQ(meter.Take(At(9000)), 100.0 * (1 << 20));
  EXPECT_EQ(meter.Take(At(9000)), 0) << "what was told is not told again";
}

TEST(RateMeterTest, ThePausesBetweenTransfersDoNotCount) {
  RateMeter meter;
  for (int begin : {0, 5000}) {
    meter.Begin(At(begin));
    meter.End(At(begin + 100), MiB(10));
  }
  EXPECT_DOUBLE_EQ(meter.Take(At(9000)), 100.0 * (1 << 20));
}

TEST(RateMeterTest, LittleIsKeptForTheNextTime) {
  RateMeter meter;
  meter.Begin(At(0));
  meter.End(At(100), MiB(10));
  EXPECT_EQ(meter.Take(At(100)), 0);
  meter.Begin(At(200));
  meter.End(At(300), MiB(10));
  EXPECT_DOUBLE_EQ(meter.Take(At(300)), 100.0 * (1 << 20));
}

TEST(RateMeterTest, WhatIsUnderWayCountsUpToNow) {
  RateMeter meter;
  meter.Begin(At(0));
  meter.Begin(At(0));
  meter.End(At(100), MiB(20));
  EXPECT_DOUBLE_EQ(meter.Take(At(200)), 100.0 * (1 << 20));
  meter.End(At(400), MiB(20));
  EXPECT_DOUBLE_EQ(meter.Take(At(400)), 100.0 * (1 << 20));
}

TEST(RateMeterTest, WaitReturnsOnceNothingIsUnderWay) {
  RateMeter meter;
  meter.Wait();
  meter.Begin(At(0));
  std::thread ends([&] { meter.End(At(1), core::Bytes{}); });
  meter.Wait();
  ends.join();
}

}  // namespace
}  // namespace ravenstore::daemon
