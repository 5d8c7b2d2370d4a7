// Budgets of little more than a client's largest step: every replay gets through, and none waits
// without an answer.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "core/types.h"
#include "sim/generators.h"
#include "sim/hardware.h"
#include "sim/score.h"
#include "sim/simulator.h"
#include "sim/trace.h"
#include "sim/trace_builder.h"
#include "tests/sim/tight_traces.h"

namespace ravenstore::sim {
namespace {

constexpr uint64_t kSeeds[] = {1, 2};
constexpr uint64_t kPercents[] = {115, 120, 130};  // of the largest step
constexpr std::pair<const char*, Hints> kHinted[] = {
    {"none", Hints::kNone}, {"time", Hints::kTime}, {"order", Hints::kOrder}};

core::Bytes BudgetOf(const Trace& trace, uint64_t percent) {
  return core::Bytes(trace.LargestStep().count() / 100 * percent).RoundUp(core::MiB(2));
}

class TightTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Programs, TightTest, testing::ValuesIn(TightNames()),
                         [](const auto& name) {
                           std::string words = name.param;
                           for (char& c : words) c = c == '+' ? '_' : c;
                           return words;
                         });

TEST_P(TightTest, GetsThroughWithLittleMoreThanItsLargestStep) {
  for (const char* machine : {"h200-pcie5", "a100-pcie4"}) {
    const Hardware& hardware = *FindHardware(machine);
    for (const uint64_t seed : kSeeds) {
      const Trace plain = TightTrace(GetParam(), hardware, seed);
      ASSERT_TRUE(Validate(plain).ok());
      for (const uint64_t percent : kPercents) {
        for (const auto& [words, hints] : kHinted) {
          const Outcome outcome = Simulate(WithHints(plain, hints),
                                           *SetupFor("value", hardware, BudgetOf(plain, percent)));
          EXPECT_EQ(outcome.failure, "")
              << "seed " << seed << ", " << percent << "%, hints by " << words << ", " << machine;
          EXPECT_FALSE(outcome.endless);
        }
      }
    }
  }
}

// Else the replays above would say nothing of clients that are refused.
TEST(TightTracesTest, SomeClientsAreRefusedAndTakeTheirTensorsAgain) {
  const Hardware& hardware = *FindHardware("h200-pcie5");
  const Trace trace = TightTrace("tables", hardware, 2);
  const Outcome tight = Simulate(trace, *SetupFor("value", hardware, BudgetOf(trace, 115)));
  EXPECT_EQ(tight.failure, "");
  EXPECT_GT(tight.refusals, 0u);
  const Outcome roomy = Simulate(trace, *SetupFor("value", hardware, BudgetOf(trace, 400)));
  EXPECT_EQ(roomy.refusals, 0u);
}

// What nobody got cannot be put: a program that only creates is refused, within its deadline.
TEST(TightTracesTest, WhoHasNothingToLetGoOfIsRefused) {
  Builder builder("creates");
  for (int i = 0; i < 4; ++i) builder.Create(core::MiB(6));
  builder.Compute(1e-3);
  const Trace trace = builder.Take();
  const Outcome outcome = Simulate(trace, *SetupFor("value", kHardware[0], core::MiB(22)));
  EXPECT_NE(outcome.failure.find("no room for 6.0 MiB"), std::string::npos) << outcome.failure;
  EXPECT_FALSE(outcome.endless);
  EXPECT_EQ(outcome.refusals, 0u);
}

}  // namespace
}  // namespace ravenstore::sim
