#include "core/recent_range.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

TEST(RecentRangeTest, NothingWasSeen) {
  EXPECT_EQ(RecentRange().most(), Bytes{0});
  EXPECT_EQ(RecentRange().least(), Bytes{0});
}

// A program that fills and empties its memory many times a window: what was once reached is known
// to the byte, however often.
TEST(RecentRangeTest, TellsTheMostAndTheLeastExactly) {
  RecentRange range;
  for (uint32_t i = 0; i < 5 * kRecentSamples; ++i) {
    range.Add(Bytes(100 + i % 1000));
    if (i < 1000) continue;
    ASSERT_EQ(range.most(), Bytes{1099}) << i;
    ASSERT_EQ(range.least(), Bytes{100}) << i;
  }
}

TEST(RecentRangeTest, ForgetsInOneToTwoWindows) {
  RecentRange range;
  range.Add(Bytes{1});
  range.Add(Bytes{9});
  for (uint32_t i = 0; i < kRecentSamples; ++i) range.Add(Bytes{5});
  EXPECT_EQ(range.most(), Bytes{9});
  EXPECT_EQ(range.least(), Bytes{1});
  for (uint32_t i = 0; i < kRecentSamples; ++i) range.Add(Bytes{5});
  EXPECT_EQ(range.most(), Bytes{5});
  EXPECT_EQ(range.least(), Bytes{5});
}

}  // namespace
}  // namespace ravenstore::core
