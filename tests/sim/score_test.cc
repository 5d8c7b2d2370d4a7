#include "sim/score.h"

#include <gtest/gtest.h>

#include "sim/generators.h"
#include "sim/oracle.h"

namespace ravenstore::sim {
namespace {

using std::chrono::milliseconds;

TEST(ScoreTest, RatioTakesTheCriterionThatIsMet) {
  Reference reference;
  reference.bound = {.stall = milliseconds(100), .compute = milliseconds(1000)};
  EXPECT_DOUBLE_EQ(Ratio(milliseconds(120), reference, kHinted), 1.2);
  // 3% above the oracle is as good as 10% above the bound.
  reference.oracle = milliseconds(200);
  EXPECT_NEAR(Ratio(milliseconds(206), reference, kHinted), 1.10, 1e-9);
  // And so is 1% of the compute time.
  reference.bound.stall = core::Duration{0};
  reference.oracle = core::Duration{0};
  EXPECT_NEAR(Ratio(milliseconds(10), reference, kHinted), 1.10, 1e-9);
  EXPECT_DOUBLE_EQ(Ratio(core::Duration{0}, reference, kHinted), 0);
}

TEST(ScoreTest, StallsCountFromTheIterationOn) {
  Outcome outcome;
  outcome.iteration_stall = {milliseconds(5), milliseconds(3), milliseconds(1)};
  EXPECT_EQ(StallFrom(outcome, 0), milliseconds(9));
  EXPECT_EQ(StallFrom(outcome, 2), milliseconds(1));
  EXPECT_EQ(StallFrom(outcome, 7), core::Duration{0});
}

TEST(ScoreTest, SetUpsAreNoIterations) {
  const Hardware& hardware = *FindHardware("h200-pcie5");
  EXPECT_EQ(SetUpIterations(Generate("cyclic-weights", hardware, 2)), 1u);
  EXPECT_EQ(SetUpIterations(Generate("gpt2-small", hardware, 2)), 0u);
  EXPECT_EQ(SetUpIterations({}), 0u);
}

TEST(ScoreTest, SeveralRunsAreJudgedByTheirMean) {
  Outcome one;
  one.time = milliseconds(10);
  one.stall = milliseconds(4);
  one.iteration_stall = {milliseconds(3), milliseconds(1)};
  Outcome other = one;
  other.stall = milliseconds(8);
  other.iteration_stall = {milliseconds(8)};
  const Outcome mean = MeanOf({one, other});
  EXPECT_EQ(mean.time, milliseconds(10));
  EXPECT_EQ(mean.stall, milliseconds(6));
  EXPECT_EQ(StallFrom(mean, 1), core::Duration(milliseconds(1)) / 2);
  other.failure = "why";
  EXPECT_EQ(MeanOf({one, other}).failure, "why");
}

TEST(ScoreTest, ReferencesOfSeveralRunsLieBetweenTheirOwn) {
  const Hardware& hardware = *FindHardware("a100-pcie4");
  const Trace trace = Generate("two-tenants", hardware, 2);
  const Trace other = WithTimesPerturbed(trace, 0.1, 1);
  const core::Bytes budget = FeasibleBudgets(trace).front().bytes;
  const Reference a = FindReference({trace}, hardware, budget, 0);
  const Reference b = FindReference({other}, hardware, budget, 0);
  const Reference both = FindReference({trace, other}, hardware, budget, 0);
  // The policy that is best in the mean is at least as good as the best of each.
  EXPECT_GE(*both.oracle + core::Duration{1}, (*a.oracle + *b.oracle) / 2);
  EXPECT_GE(both.bound.stall, std::min(a.bound.stall, b.bound.stall) - core::Duration{1});
  EXPECT_LE(both.bound.stall, std::max(a.bound.stall, b.bound.stall));
}

TEST(ScoreTest, TheLeastKnownStallIsNoMoreThanAnybodys) {
  const Hardware& hardware = kHardware[0];
  const Trace trace = Generate("gpt2-small", hardware, 3);
  const core::Bytes budget(trace.Footprint().count() / 2);
  const auto least = LeastKnownStall({trace}, hardware, budget, 0);
  ASSERT_TRUE(least.has_value());
  EXPECT_LE(*least, SimulateOracle(trace, hardware, budget).stall);
  EXPECT_LE(*least, SimulateOracle(trace, hardware, budget, milliseconds(5)).stall);
  const ReplaySetup setup{.hardware = hardware, .budget = budget};
  EXPECT_LE(*least, ReplayUnder("foreseen", trace, setup).stall);
  EXPECT_GE(*least, LeastStall(trace, hardware, budget).stall);
}

TEST(ScoreTest, WhatIsComputedIsThatOfTheIterationsThatCount) {
  const Trace trace = Generate("two-tenants", kHardware[0], 3);
  const core::Duration all = ComputeFrom(trace, 0);
  EXPECT_EQ(ComputeFrom(trace, 1) * 3, all * 2);
  EXPECT_EQ(ComputeFrom(trace, 3), core::Duration{0});
  const Outcome outcome = ReplayUnder("learned", trace, {.budget = trace.Footprint()});
  EXPECT_EQ(outcome.compute, all);
}

TEST(ScoreTest, BudgetsAreThoseUnderWhichEveryStepFits) {
  for (const std::string& name : GeneratorNames()) {
    const Trace trace = Generate(name, kHardware[0], 2);
    const auto budgets = FeasibleBudgets(trace);
    ASSERT_FALSE(budgets.empty()) << name;
    EXPECT_EQ(budgets.back().percent, 90);
    for (const Budget& budget : budgets) EXPECT_GE(budget.bytes, trace.LargestStep());
  }
}

TEST(ScoreTest, EachPolicyReplays) {
  const Trace trace = Generate("gpt2-small", kHardware[0], 2);
  for (const std::string& name : PolicyNames()) {
    const Outcome outcome = ReplayUnder(name, trace, {.budget = trace.Footprint() * 2});
    EXPECT_EQ(outcome.failure, "") << name;
    EXPECT_EQ(outcome.compute, ComputeFrom(trace, 0)) << name;
    EXPECT_EQ(outcome.up, core::Bytes{}) << name;
  }
}

}  // namespace
}  // namespace ravenstore::sim
