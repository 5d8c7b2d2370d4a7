#include "sim/oracle.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/demand_paging.h"
#include "sim/generators.h"
#include "sim/score.h"
#include "sim/trace_builder.h"

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
      const Outcome demand = ReplayDemandPaging(trace, kHardware[0], budget.bytes, {});
      if (!demand.failure.empty()) continue;
      EXPECT_LE(SimulateOracle(trace, kHardware[0], budget.bytes).stall, demand.stall)
          << name << " " << budget.percent << "%";
    }
  }
}

TEST(OracleTest, BringsNothingThatIsNeededBeyondWhatItLooksAhead) {
  Builder builder("one that comes back");
  const uint32_t first = builder.Make(core::MiB(64));
  const uint32_t second = builder.Make(core::MiB(64));
  builder.Compute(10e-3);
  builder.Free(second);
  builder.Compute(10e-3);
  builder.Compute(10e-6);  // what runs is not counted
  builder.Get(first);
  const Trace trace = builder.Take();
  const auto stall = [&](core::Duration lookahead) {
    const Outcome outcome = SimulateOracle(trace, kHardware[0], core::MiB(96), lookahead);
    EXPECT_EQ(outcome.failure, "");
    EXPECT_EQ(outcome.client_stall, std::vector{outcome.stall});
    return outcome.stall;
  };
  const core::Duration copy = core::FromSeconds(core::MiB(64).count() / kHardware[0].up);
  // That the first leaves costs each the same.
  EXPECT_GE(stall(core::Duration{0}), stall(core::Duration::max()) + copy / 2);
}

}  // namespace
}  // namespace ravenstore::sim
