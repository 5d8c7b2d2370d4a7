#include "core/sliding_minimum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace ravenstore::core {
namespace {

Tick At(int64_t seconds) {
  return Tick(std::chrono::seconds(seconds));
}

TEST(SlidingMinimumTest, ItIsTheLeastOfTheSpanAndNotOfWhatWasBefore) {
  SlidingMinimum least(std::chrono::seconds(10));
  least.Add(At(0), MiB(3));
  least.Add(At(1), MiB(5));
  least.Add(At(2), MiB(4));
  EXPECT_EQ(least.least(), MiB(3));
  least.Add(At(11), MiB(9));
  EXPECT_EQ(least.least(), MiB(3)) << "it held until second 1";
  least.Add(At(12), MiB(9));
  EXPECT_EQ(least.least(), MiB(4));
  least.Add(At(13), MiB(1));
  EXPECT_EQ(least.least(), MiB(1));
}

TEST(SlidingMinimumTest, WhatWasSeenHoldsUntilTheNextLook) {
  SlidingMinimum least(std::chrono::seconds(10));
  least.Add(At(0), MiB(1));
  least.Add(At(100), MiB(8));
  EXPECT_EQ(least.least(), MiB(1)) << "all of the time before second 100";
  least.Add(At(111), MiB(9));
  EXPECT_EQ(least.least(), MiB(8));
}

TEST(SlidingMinimumTest, ASpanIsWholeOnceItWasSeen) {
  SlidingMinimum least(std::chrono::seconds(10));
  least.Add(At(5), MiB(1));
  EXPECT_FALSE(least.IsWhole());
  least.Add(At(14), MiB(1));
  EXPECT_FALSE(least.IsWhole());
  least.Add(At(15), MiB(1));
  EXPECT_TRUE(least.IsWhole());
}

TEST(SlidingMinimumTest, ASpanOfNothingIsWhatIsSeenNow) {
  SlidingMinimum least(Duration{0});
  least.Add(At(5), MiB(1));
  EXPECT_TRUE(least.IsWhole());
  least.Add(At(6), MiB(7));
  least.Add(At(7), MiB(9));
  EXPECT_EQ(least.least(), MiB(7)) << "it held until now";
  least.Add(At(8), MiB(2));
  EXPECT_EQ(least.least(), MiB(2));
}

TEST(SlidingMinimumTest, ItIsTheLeastOfAllWhenEachIsLookedAt) {
  std::mt19937 random(7);
  constexpr int64_t kSpan = 20;
  SlidingMinimum least{std::chrono::seconds(kSpan)};
  std::vector<std::pair<int64_t, Bytes>> all;
  int64_t now = 0;
  for (int i = 0; i < 2000; ++i) {
    now += static_cast<int64_t>(random() % 9);
    const Bytes value(random() % 100);
    least.Add(At(now), value);
    all.emplace_back(now, value);
    Bytes expected = value;
    for (size_t j = 0; j + 1 < all.size(); ++j) {
      if (all[j + 1].first >= now - kSpan) expected = std::min(expected, all[j].second);
    }
    ASSERT_EQ(least.least(), expected) << "look " << i;
  }
}

}  // namespace
}  // namespace ravenstore::core
