#include "sim/kernel_traces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/generators.h"
#include "sim/score.h"

namespace ravenstore::sim {
namespace {

using core::Bytes;

std::vector<std::string> KernelLevelNames() {
  std::vector<std::string> names;
  for (const std::string& name : GeneratorNames()) {
    if (IsKernelLevel(name)) names.push_back(name);
  }
  return names;
}

TEST(KernelTracesTest, ThereAreThreeAndAllArePeriodic) {
  EXPECT_EQ(KernelLevelNames(), (std::vector<std::string>{"unet", "lstm", "mobilenet"}));
  for (const std::string& name : KernelLevelNames()) EXPECT_TRUE(IsPeriodic(name)) << name;
}

TEST(KernelTracesTest, TensorsAreOfHundredsOfBytesToHundredsOfMegabytes) {
  for (const std::string& name : KernelLevelNames()) {
    const Trace trace = Generate(name, kHardware[0], 1);
    ASSERT_TRUE(Validate(trace).ok()) << name;
    Bytes least = trace.tensors.front().bytes;
    Bytes most;
    for (const TraceTensor& tensor : trace.tensors) {
      least = std::min(least, tensor.bytes);
      most = std::max(most, tensor.bytes);
    }
    EXPECT_LT(least, core::KiB(32)) << name;
    EXPECT_GT(most, core::MiB(100)) << name;
    EXPECT_GT(trace.ops.size(), 1000u) << name;
    EXPECT_LT(trace.ops.size(), 100'000u) << name;
  }
}

// Each iteration makes, uses and frees the same; only times differ, and those little.
TEST(KernelTracesTest, IterationsAreAlikeButForTheNoiseOfTheirTimes) {
  for (const std::string& name : KernelLevelNames()) {
    const Trace trace = Generate(name, kHardware[0], 3);
    std::vector<std::vector<std::pair<OpKind, Bytes>>> calls(1);
    std::vector<core::Duration> compute(1);
    for (const Op& op : trace.ops) {
      if (op.kind == OpKind::kStep) {
        calls.emplace_back();
        compute.emplace_back();
        continue;
      }
      const bool timed = op.kind == OpKind::kCompute;
      calls.back().emplace_back(op.kind, timed ? Bytes{} : trace.tensors[op.tensor].bytes);
      compute.back() += op.time;
    }
    ASSERT_GE(calls.size(), 4u) << name;
    EXPECT_EQ(calls[2], calls[3]) << name;
    EXPECT_NE(compute[2], compute[3]) << name;
    EXPECT_NEAR(core::Seconds(compute[2]) / core::Seconds(compute[3]), 1, 0.02) << name;
  }
}

// Choices were made on these traces: they stay what they were.
TEST(KernelTracesTest, TracesAreAsTheyWere) {
  struct Known {
    uint64_t fingerprint;
    core::Duration::rep compute;  // nanoseconds
  };
  const std::map<std::string, Known> known = {{"unet", {46374357607951010u, 336157149}},
                                              {"lstm", {6807092674260304781u, 68354806}},
                                              {"mobilenet", {9101710999559017149u, 30091388}}};
  for (const std::string& name : KernelLevelNames()) {
    const Trace trace = Generate(name, kHardware[0], 2);
    core::Duration compute{0};
    for (const Op& op : trace.ops) compute += op.time;
    EXPECT_EQ(trace.Fingerprint(), known.at(name).fingerprint) << name;
    EXPECT_EQ(compute.count(), known.at(name).compute) << name;
  }
}

// What backward needs is held, and everything but weights and momenta goes with the iteration.
TEST(KernelTracesTest, NothingButWhatIsLearnedOutlivesAnIteration) {
  for (const std::string& name : KernelLevelNames()) {
    const Trace trace = Generate(name, kHardware[0], 2);
    std::set<uint32_t> alive;
    std::vector<std::set<uint32_t>> at_steps;
    for (const Op& op : trace.ops) {
      if (op.kind == OpKind::kCreate) alive.insert(op.tensor);
      if (op.kind == OpKind::kFree) alive.erase(op.tensor);
      if (op.kind == OpKind::kStep) at_steps.push_back(alive);
    }
    ASSERT_EQ(at_steps.size(), 3u) << name;
    for (const uint32_t tensor : at_steps[0])
      EXPECT_TRUE(at_steps[2].contains(tensor)) << name << " " << tensor;
    EXPECT_TRUE(alive.empty()) << name;
  }
}

TEST(KernelTracesTest, GetThroughWhereTheBudgetIsLittleMoreThanTheLargestStep) {
  for (const char* machine : {"h200-pcie5", "a100-pcie4"}) {
    for (const std::string& name : KernelLevelNames()) {
      const Hardware& hardware = *FindHardware(machine);
      const Trace trace = Generate(name, hardware, 2);
      for (const uint64_t percent : {115u, 119u, 130u, 150u}) {
        const Bytes budget =
            Bytes(trace.LargestStep().count() / 100 * percent).RoundUp(core::MiB(2));
        for (const Hints hints : {Hints::kNone, Hints::kTime, Hints::kOrder}) {
          const Outcome outcome = ReplayUnder("hints", WithHints(trace, hints),
                                              {.hardware = hardware, .budget = budget});
          EXPECT_EQ(outcome.failure, "") << name << " at " << percent << "% on " << machine;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ravenstore::sim
