#include "daemon/pauses.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace ravenstore::daemon {
namespace {

using core::Duration;

TEST(PausesTest, NothingRecordedIsZero) {
  const Pauses pauses;
  EXPECT_EQ(pauses.Longest(), Duration(0));
  EXPECT_EQ(pauses.Quantile(0.999), Duration(0));
}

TEST(PausesTest, QuantilesAreWithinAnEighthAbove) {
  for (uint64_t ns = 1; ns < uint64_t{1} << 50; ns = ns * 3 / 2 + 1) {
    Pauses pauses;
    pauses.Record(Duration(ns));
    pauses.Record(Duration(ns * 100));
    const auto low = static_cast<uint64_t>(pauses.Quantile(0.25).count());
    EXPECT_GE(low, ns);
    EXPECT_LE(low, ns + ns / 8) << ns;
    EXPECT_EQ(pauses.Longest(), Duration(ns * 100));
  }
}

TEST(PausesTest, QuantilesSplitWhatWasRecorded) {
  Pauses pauses;
  for (int i = 0; i < 998; ++i) pauses.Record(Duration(1000));
  for (int i = 0; i < 2; ++i) pauses.Record(Duration(1000000));
  EXPECT_LT(pauses.Quantile(0.5), Duration(1200));
  EXPECT_LT(pauses.Quantile(0.99), Duration(1200));
  EXPECT_EQ(pauses.Quantile(0.999), Duration(1000000));
  EXPECT_EQ(pauses.Quantile(1), Duration(1000000));
}

TEST(PausesTest, ExtremesHaveTheirBucket) {
  Pauses pauses;
  pauses.Record(Duration(-5));
  EXPECT_EQ(pauses.Longest(), Duration(0));
  pauses.Record(Duration::max());
  EXPECT_EQ(pauses.Longest(), Duration::max());
  EXPECT_EQ(pauses.Quantile(0.25), Duration(0));
  EXPECT_EQ(pauses.Quantile(0.999), Duration::max());
}

TEST(PausesTest, ResetForgets) {
  Pauses pauses;
  pauses.Record(Duration(1000));
  pauses.Reset();
  EXPECT_EQ(pauses.Longest(), Duration(0));
  EXPECT_EQ(pauses.Quantile(0.5), Duration(0));
}

}  // namespace
}  // namespace ravenstore::daemon
