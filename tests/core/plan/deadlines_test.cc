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
  ResidencyPlan plan = ResidencyPlan::Make(calls, {}, {.page = MiB(2), .pages = 1});
  Deadlines deadlines;
  EXPECT_FALSE(deadlines.IsLate(plan));
  deadlines.Restart(plan);
  deadlines.Set(0, 3, microseconds(200));
  EXPECT_FALSE(deadlines.IsLate(plan));
  deadlines.Set(2, 3, microseconds(101));
  EXPECT_TRUE(deadlines.IsLate(plan));
  deadlines.Set(2, 4, microseconds(101));
  EXPECT_FALSE(deadlines.IsLate(plan));
  // Time passes.
  std::vector<Unit> passed;
  plan.MoveTo(2, &passed);
  EXPECT_TRUE(deadlines.IsLate(plan));
  deadlines.Clear(0);
  EXPECT_FALSE(deadlines.IsLate(plan));
  deadlines.Set(4, kNoPosition, microseconds(9999));
  EXPECT_FALSE(deadlines.IsLate(plan));
}

}  // namespace
}  // namespace ravenstore::core::plan
