#include "core/decide/plan_drift.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace ravenstore::core::decide {
namespace {

using std::chrono::microseconds;

bool Drifted(const std::vector<PlanClock>& clients) {
  return HaveDrifted(clients);
}

TEST(PlanDriftTest, AClockIsBetweenTwoCalls) {
  std::vector<plan::PlannedCall> calls;
  for (int i = 1; i <= 2; ++i) calls.push_back({.at = microseconds(100 * i)});
  plan::ResidencyPlan plan = plan::ResidencyPlan::Make(
      calls, {}, {.page = MiB(2), .pages = 1, .pools = {{.out_rate = 1e9}}});
  EXPECT_EQ(ClockOf(plan).last, microseconds(0));
  EXPECT_EQ(ClockOf(plan).next, microseconds(100));
  std::vector<plan::Unit> passed;
  plan.MoveTo(1, &passed);
  EXPECT_EQ(ClockOf(plan).last, microseconds(100));
  EXPECT_EQ(ClockOf(plan).next, microseconds(200));
}

TEST(PlanDriftTest, ClientsBetweenCallsOfTheSameTimeHaveNotDrifted) {
  EXPECT_FALSE(
      Drifted({{microseconds(0), microseconds(9000)}, {microseconds(8000), microseconds(8100)}}));
}

TEST(PlanDriftTest, AClientThatIsAheadOfTheNextCallOfAnotherHasDrifted) {
  const PlanClock behind{microseconds(0), microseconds(100)};
  EXPECT_FALSE(Drifted({behind, {microseconds(1100), microseconds(1200)}}));
  EXPECT_TRUE(Drifted({behind, {microseconds(1101), microseconds(1200)}}));
  EXPECT_FALSE(Drifted({behind}));
  EXPECT_FALSE(Drifted({}));
}

}  // namespace
}  // namespace ravenstore::core::decide
