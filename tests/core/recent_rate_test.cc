#include "core/recent_rate.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

using std::chrono::milliseconds;
constexpr Tick kNow{std::chrono::seconds(1000)};

TEST(RecentRateTest, NothingIsAddedWithoutBytes) {
  EXPECT_EQ(RecentRate().PerSecond(kNow), 0);
}

TEST(RecentRateTest, TellsASteadyRate) {
  RecentRate rate;
  for (int i = 0; i < 2000; ++i) rate.Add(MiB(1), kNow + std::chrono::microseconds(10) * i);
  const double steady = static_cast<double>(MiB(1).count()) * 1e5;
  EXPECT_NEAR(rate.PerSecond(kNow + milliseconds(20)), steady, steady / 100);
}

TEST(RecentRateTest, ForgetsWithinMilliseconds) {
  RecentRate rate;
  rate.Add(MiB(100), kNow);
  const double first = rate.PerSecond(kNow);
  EXPECT_NEAR(rate.PerSecond(kNow + milliseconds(2)), first / 2.718, first / 100);
  EXPECT_LT(rate.PerSecond(kNow + milliseconds(50)), first / 1e9);
}

}  // namespace
}  // namespace ravenstore::core
