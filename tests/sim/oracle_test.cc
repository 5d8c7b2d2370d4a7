#include "sim/oracle.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/generators.h"
#include "sim/score.h"

namespace ravenstore::sim {
namespace {

TEST(OracleTest, IsNeverBetterThanTheBound) {
  for (const std::string& name : GeneratorNames()) {
    const Trace trace = Generate(name, kHardware[0], 3);
    for (const Budget& budget : FeasibleBudgets(trace)) {
      SCOPED_TRACE(name + " " + std::to_string(budget.percent) + "%");
      const Outcome outcome = SimulateOracle(trace, kHardware[0], budget.bytes);
      ASSERT_EQ(outcome.failure, "");
      EXPECT_GE(outcome.stall, LeastStall(trace, kHardware[0], budget.bytes).stall);
      if (trace.clients == 1) {
        EXPECT_EQ(outcome.compute + outcome.stall, outcome.time);
      }
    }
  }
}

TEST(OracleTest, IsNeverWorseThanDemandPaging) {
  for (const std::string& name : GeneratorNames()) {
    const Trace trace = Generate(name, kHardware[0], 3);
    // Of several clients each has an eye on its own line alone, and the link is everybody's. And
    // the oracle counts bytes: what a copy costs by itself it does not weigh, which among thousands
    // of small tensors is most of it.
    if (trace.clients > 1 || IsKernelLevel(name)) continue;
    for (const Budget& budget : FeasibleBudgets(trace)) {
      const Outcome demand = Simulate(trace, *SetupFor("demand-lru", kHardware[0], budget.bytes));
      if (!demand.failure.empty()) continue;
      EXPECT_LE(SimulateOracle(trace, kHardware[0], budget.bytes).stall, demand.stall)
          << name << " " << budget.percent << "%";
    }
  }
}

}  // namespace
}  // namespace ravenstore::sim
