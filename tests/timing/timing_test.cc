#include "tests/timing/timing.h"

#include <gtest/gtest.h>

namespace ravenstore {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(TimingTest, AnIdleMachineStretchesNothing) {
  EXPECT_EQ(StretchOf("0.20 0.40 0.90 1/345 6789\n", 2), 1.0);
  EXPECT_EQ(StretchOf("2.00 9.00 9.00 2/345 6789\n", 2), 1.0);
}

TEST(TimingTest, ThreadsThatWantACoreStretchByTheirNumberOfACore) {
  EXPECT_EQ(StretchOf("6.00 0.40 0.90 1/345 6789\n", 2), 3.0) << "in the last minute";
  EXPECT_EQ(StretchOf("0.20 0.40 0.90 8/345 6789\n", 2), 4.0) << "now";
}

TEST(TimingTest, TheStretchHasBounds) {
  EXPECT_EQ(StretchOf("", 0), 1.0);
  EXPECT_EQ(StretchOf("100000.0 1 1 1/2 3", 1), 32.0);
  EXPECT_GE(Stretch(), 1.0);
  EXPECT_GE(Stretched(seconds(1)), seconds(1));
}

TEST(TimingTest, WhatIsTrueWaitsNot) {
  EXPECT_TRUE(Eventually([] { return true; }, seconds(0)));
}

TEST(TimingTest, WhatComesIsSeen) {
  int looks = 0;
  EXPECT_TRUE(Eventually([&] { return ++looks == 3; }));
}

TEST(TimingTest, WhatComesWithTheLastLookIsSeen) {
  int looks = 0;
  EXPECT_TRUE(Eventually([&] { return ++looks == 2; }, seconds(0)));
}

TEST(TimingTest, WhatNeverComesEndsNotBeforeTheLimit) {
  const auto begin = std::chrono::steady_clock::now();
  int between = 0;
  EXPECT_FALSE(EventuallyWith([] { return false; }, [&] { ++between; }, milliseconds(150)));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(150));
  EXPECT_GT(between, 0);
}

}  // namespace
}  // namespace ravenstore
