#include "core/plan/deadlines.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace ravenstore::core::plan {
namespace {

using std::chrono::microseconds;

TEST(DeadlinesTest, CopiesUntilANeedMustFitBeforeIt) {
  std::vector<PlannedCall> calls;
  for (int i = 0; i < 10; ++i) calls.push_back({.at = microseconds(100 * i)});
  ResidencyPlan plan =
      ResidencyPlan::Make(calls, {}, {.page = MiB(2), .pages = 1, .pools = {{.out_rate = 1e9}}});
  Deadlines deadlines;
  EXPECT_FALSE(deadlines.IsLate(plan));
  deadlines.Restart(plan);
  deadlines.Set(0, 3, 0, microseconds(200));
  EXPECT_FALSE(deadlines.IsLate(plan));
  deadlines.Set(2, 3, 0, microseconds(101));
  EXPECT_TRUE(deadlines.IsLate(plan));
  deadlines.Set(2, 4, 0, microseconds(101));
  EXPECT_FALSE(deadlines.IsLate(plan));
  // Time passes.
  std::vector<Unit> passed;
  plan.MoveTo(2, &passed);
  EXPECT_TRUE(deadlines.IsLate(plan));
  deadlines.Clear(0);
  EXPECT_FALSE(deadlines.IsLate(plan));
  deadlines.Set(4, kNoPosition, 0, microseconds(9999));
  EXPECT_FALSE(deadlines.IsLate(plan));
}

TEST(DeadlinesTest, PoolsCopyAtTheSameTime) {
  std::vector<PlannedCall> calls;
  for (int i = 0; i < 4; ++i) calls.push_back({.at = microseconds(100 * i)});
  const ResidencyPlan plan =
      ResidencyPlan::Make(calls, {}, {.page = MiB(2), .pages = 1, .pools = {{.out_rate = 1e9}}});
  Deadlines deadlines(2);
  deadlines.Restart(plan);
  deadlines.Set(0, 3, 0, microseconds(300));
  deadlines.Set(2, 3, 1, microseconds(300));
  EXPECT_FALSE(deadlines.IsLate(plan));
  deadlines.Set(2, 3, 0, microseconds(300));
  EXPECT_TRUE(deadlines.IsLate(plan));
  deadlines.Clear(2);
  EXPECT_FALSE(deadlines.IsLate(plan));
}

}  // namespace
}  // namespace ravenstore::core::plan
