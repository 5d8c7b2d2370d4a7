// Budgets of little more than a client's largest step: every replay gets through.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/types.h"
#include "sim/generators.h"
#include "sim/hardware.h"
#include "sim/score.h"
#include "sim/trace.h"
#include "sim/trace_builder.h"
#include "tests/sim/tight_traces.h"

namespace ravenstore::sim {
namespace {

constexpr uint64_t kSeeds[] = {1, 2};
// Of the largest step, in percent. A tensor in use keeps each of its pages: of programs that read
// their tensors by chance, those in use lie in pages with others.
std::vector<uint64_t> PercentsFor(const std::string& name) {
  const bool by_chance =
      name.find("tables") != std::string::npos || name.find("prefixes") != std::string::npos;
  return by_chance ? std::vector<uint64_t>{200, 250} : std::vector<uint64_t>{115, 120, 130};
}

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
      for (const uint64_t percent : PercentsFor(GetParam())) {
        for (const auto& [words, hints] : kHinted) {
          const Outcome outcome =
              ReplayUnder("hints", WithHints(plain, hints),
                          {.hardware = hardware, .budget = BudgetOf(plain, percent)});
          EXPECT_EQ(outcome.failure, "")
              << "seed " << seed << ", " << percent << "%, hints by " << words << ", " << machine;
        }
      }
    }
  }
}

// What no call got cannot be put: a program that only creates fails.
TEST(TightTracesTest, AProgramThatOnlyCreatesIsRefused) {
  Builder builder("creates");
  for (int i = 0; i < 4; ++i) builder.Create(core::MiB(6));
  builder.Compute(1e-3);
  const Trace trace = builder.Take();
  const Outcome outcome = ReplayUnder("learned", trace, {.budget = core::MiB(22)});
  EXPECT_NE(outcome.failure.find("no room for what is in use at call 3"), std::string::npos)
      << outcome.failure;
}

}  // namespace
}  // namespace ravenstore::sim
