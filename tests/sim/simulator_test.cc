#include "sim/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "sim/generators.h"
#include "sim/inputs.h"
#include "sim/lower_bound.h"
#include "sim/oracle.h"
#include "sim/score.h"

namespace ravenstore::sim {

using core::Milliseconds;

namespace {

Hardware Simple() {
  Hardware hardware;
  hardware.name = "simple";
  hardware.up = hardware.down = 1e9;
  hardware.latency = core::Duration{0};
  hardware.per_copy = core::Duration{0};
  return hardware;
}

// A tensor of 8 MiB and one of 8 MiB that cannot be there at once: each get brings one and, where
// it is dirty, takes the other out first.
Trace Swap() {
  Trace trace;
  trace.name = "swap";
  trace.tensors = {{0, core::MiB(8), ""}, {0, core::MiB(8), ""}};
  trace.ops = {
      {.kind = OpKind::kCreate, .tensor = 0},
      {.kind = OpKind::kPut, .tensor = 0, .modified = true},
      {.kind = OpKind::kCreate, .tensor = 1},
      {.kind = OpKind::kPut, .tensor = 1, .modified = true},
      {.kind = OpKind::kGet, .tensor = 0},
      {.kind = OpKind::kCompute, .time = std::chrono::milliseconds(1)},
      {.kind = OpKind::kPut, .tensor = 0},
  };
  return trace;
}

TEST(SimulatorTest, TimeOfASwapIsThatOfItsCopies) {
  auto setup = *SetupFor("demand-lru", Simple(), core::MiB(8));
  const Outcome outcome = Simulate(Swap(), setup);
  ASSERT_EQ(outcome.failure, "");
  // Out for the second create, out and in for the get; 8 MiB take 8.39 ms each.
  EXPECT_EQ(outcome.down, core::MiB(16));
  EXPECT_EQ(outcome.up, core::MiB(8));
  EXPECT_NEAR(Milliseconds(outcome.stall), 3 * 8.388608, 0.01);
  EXPECT_NEAR(Milliseconds(outcome.time), 3 * 8.388608 + 1, 0.01);
  EXPECT_EQ(outcome.stats.misses, 1u);
}

TEST(SimulatorTest, APeersMemoryIsReachedOverItsOwnLink) {
  auto setup = *SetupFor("demand-lru", Simple(), core::MiB(8));
  setup.pools = {{core::PoolKind::kPeer, core::MiB(64), 4e9, 2e9}};
  const Outcome outcome = Simulate(Swap(), setup);
  ASSERT_EQ(outcome.failure, "");
  // Out twice at 2 GB/s, in once at 4.
  EXPECT_NEAR(Milliseconds(outcome.stall), 2 * 4.194304 + 2.097152, 0.01);
}

TEST(SimulatorTest, AMoveToAFileTakesBothOfItsLinks) {
  auto setup = *SetupFor("demand-lru", Simple(), core::MiB(8));
  setup.host = kBudgetUnit;  // no room for either
  setup.pools = {{core::PoolKind::kFile, core::MiB(64), 0.5e9, 0.25e9}};
  const Outcome outcome = Simulate(Swap(), setup);
  ASSERT_EQ(outcome.failure, "");
  // Of less than a chunk of the staging ring one link takes its time after the other; a file's end
  // is known 0.1 ms later.
  const double out = 8.388608 + 33.554432 + 0.1;
  const double in = 16.777216 + 0.1 + 8.388608;
  EXPECT_NEAR(Milliseconds(outcome.stall), 2 * out + in, 0.01);
  EXPECT_EQ(outcome.down, core::MiB(16)) << "bytes over the device's links";
}

TEST(SimulatorTest, AMoveOverTwoLinksGoesOnChunkByChunk) {
  Trace trace = Swap();
  for (TraceTensor& tensor : trace.tensors) tensor.bytes = core::MiB(64);
  auto setup = *SetupFor("demand-lru", Simple(), core::MiB(64));
  setup.incremental = false;
  setup.host = kBudgetUnit;
  setup.pools = {{core::PoolKind::kFile, core::MiB(256), 1e9, 1e9}};
  const Outcome outcome = Simulate(trace, setup);
  ASSERT_EQ(outcome.failure, "");
  // Each of the three moves takes four chunks of 16 MiB over one link, and one more over the other.
  EXPECT_NEAR(Milliseconds(outcome.stall), 3 * 5 * 16.777216, 3 * 0.2 + 0.01);
}

TEST(SimulatorTest, NoPolicyMovesMoreThanAllLinksTogether) {
  const Hardware joint = WithAllLinks(Simple(), {{core::PoolKind::kPeer, core::MiB(8), 4e9, 2e9},
                                                 {core::PoolKind::kFile, core::MiB(8), 9e9, 9e9}});
  EXPECT_EQ(joint.up, 5e9);
  EXPECT_EQ(joint.down, 3e9);
  const Trace trace = WithHints(Generate("gpt2-small", kHardware[0], 2), Hints::kTime);
  auto setup = *SetupFor("value", Simple(), ParseBudget("60%", trace)->bytes);
  setup.pools = {{core::PoolKind::kPeer, trace.Footprint(), 4e9, 2e9}};
  const Outcome outcome = Simulate(trace, setup);
  ASSERT_EQ(outcome.failure, "");
  EXPECT_GE(outcome.stall, LeastStall(trace, setup).stall);
  EXPECT_LT(outcome.stall, LeastStall(trace, Simple(), setup.budget).stall)
      << "with the host alone it could not be so little";
}

TEST(SimulatorTest, WhatFitsNeverStalls) {
  const Trace trace = Generate("gpt2-small", kHardware[0], 2);
  for (const std::string& policy : PolicyNames()) {
    const core::Bytes budget = trace.Footprint() * 2;
    const Outcome outcome = Simulate(trace, *SetupFor(policy, kHardware[0], budget));
    EXPECT_EQ(outcome.failure, "");
    EXPECT_EQ(outcome.stall, core::Duration{0}) << policy;
    EXPECT_EQ(outcome.time, outcome.compute) << policy;
    EXPECT_EQ(outcome.up, core::Bytes{0}) << policy;
  }
}

TEST(SimulatorTest, ABudgetBeyondAnyDeviceIsABudget) {
  const Trace trace = Generate("gpt2-small", kHardware[0], 1);
  const Outcome outcome = Simulate(trace, *SetupFor("value", kHardware[0], core::GiB(1u << 20)));
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.stall, core::Duration{0});
}

TEST(SimulatorTest, ATraceThatAsksForNothingIsReplayed) {
  Trace trace;
  trace.name = "idle";
  trace.ops = {{.kind = OpKind::kCompute, .time = std::chrono::milliseconds(3)},
               {.kind = OpKind::kStep},
               {.kind = OpKind::kCompute, .time = std::chrono::milliseconds(4)}};
  for (const std::string& policy : PolicyNames()) {
    const Outcome outcome = Simulate(trace, *SetupFor(policy, kHardware[0], core::MiB(8)));
    EXPECT_EQ(outcome.failure, "");
    EXPECT_EQ(outcome.time, std::chrono::milliseconds(7));
    EXPECT_EQ(outcome.stall, core::Duration{0});
  }
  EXPECT_EQ(SimulateOracle(trace, kHardware[0], core::MiB(8)).time, std::chrono::milliseconds(7));
  EXPECT_EQ(LeastStall(trace, kHardware[0], core::MiB(8)).stall, core::Duration{0});
}

TEST(SimulatorTest, SameInputSameOutcome) {
  const Trace trace = Generate("moe", kHardware[0], 2);
  const auto setup = *SetupFor("value", kHardware[0], core::Bytes(trace.Footprint().count() / 2));
  const Outcome a = Simulate(trace, setup);
  const Outcome b = Simulate(trace, setup);
  EXPECT_EQ(a.time, b.time);
  EXPECT_EQ(a.up, b.up);
  EXPECT_EQ(a.down, b.down);
  EXPECT_EQ(a.events, b.events);
  EXPECT_EQ(a.iteration_stall, b.iteration_stall);
}

TEST(SimulatorTest, TimesAndBytesAddUp) {
  for (const std::string& name : GeneratorNames()) {
    const Trace trace = Generate(name, kHardware[0], 2);
    for (const Budget& budget : FeasibleBudgets(trace)) {
      if (budget.percent % 20 != 0) continue;
      for (const std::string& policy : PolicyNames()) {
        const Outcome outcome = Simulate(trace, *SetupFor(policy, kHardware[0], budget.bytes));
        SCOPED_TRACE(name + " " + std::to_string(budget.percent) + "% " + policy);
        if (!outcome.failure.empty()) continue;  // counted by the benchmark
        EXPECT_EQ(std::accumulate(outcome.iteration_stall.begin(), outcome.iteration_stall.end(),
                                  core::Duration{0}),
                  outcome.stall);
        if (trace.clients == 1) {
          EXPECT_EQ(outcome.compute + outcome.stall, outcome.time);
        }
        EXPECT_GE(outcome.stall, LeastStall(trace, kHardware[0], budget.bytes).stall);
        // What comes in was asked for, and what was never out cannot come.
        EXPECT_LE(outcome.up, outcome.stats.in);
        if (outcome.down == core::Bytes{0}) {
          EXPECT_EQ(outcome.up, core::Bytes{0});
        }
      }
    }
  }
}

TEST(SimulatorTest, TimelinesHoldTheWholeTime) {
  const Trace trace = Generate("gpt2-small", kHardware[0], 2);
  auto setup = *SetupFor("value", kHardware[0], core::Bytes(trace.Footprint().count() / 10 * 6));
  setup.timeline = true;
  const Outcome outcome = Simulate(trace, setup);
  core::Duration computed{0};
  core::Duration stalled{0};
  for (const Span& span : outcome.spans) {
    EXPECT_LT(span.begin, span.end);
    if (span.kind == Span::Kind::kCompute) computed += span.end - span.begin;
    if (span.kind == Span::Kind::kStall) stalled += span.end - span.begin;
  }
  EXPECT_EQ(computed, outcome.compute);
  EXPECT_EQ(stalled, outcome.stall);
}

// Budgets of less than a slab, too.
TEST(SimulatorTest, SmallProgramsGetThroughWhereverTheirLargestStepFits) {
  const Hardware& hardware = *FindHardware("a100-pcie4");
  for (const char* name : {"alexnet", "resnet50", "gpt2-small"}) {
    Trace trace = Generate(name, hardware, 4);
    for (TraceTensor& tensor : trace.tensors)
      tensor.bytes = core::Bytes(tensor.bytes.count() / 32).RoundUp(core::kExtentAlignment);
    for (Op& op : trace.ops) op.time /= 32;
    for (const Hints hints : {Hints::kNone, Hints::kTime, Hints::kOrder}) {
      const Trace hinted = WithHints(trace, hints);
      for (const Budget& budget : FeasibleBudgets(trace)) {
        SCOPED_TRACE(std::string(name) + " at " + std::to_string(budget.percent) + "%");
        EXPECT_EQ(Simulate(hinted, *SetupFor("value", hardware, budget.bytes)).failure, "");
      }
    }
  }
}

// Tensors in use cannot move, and keep the slabs that they lie in.
TEST(SimulatorTest, ManyInUseTogetherGetThroughOnLittleMoreThanTheyTake) {
  const Hardware& hardware = *FindHardware("h200-pcie5");
  for (const char* name : {"kv-cache", "recsys"}) {
    const Trace trace = Generate(name, hardware, 2);
    for (const Hints hints : {Hints::kNone, Hints::kTime, Hints::kOrder}) {
      const Trace hinted = WithHints(trace, hints);
      for (const uint64_t percent : {115u, 130u}) {
        SCOPED_TRACE(std::string(name) + " at " + std::to_string(percent) + "%");
        const core::Bytes budget =
            core::Bytes(trace.LargestStep().count() / 100 * percent).RoundUp(core::MiB(2));
        EXPECT_EQ(Simulate(hinted, *SetupFor("value", hardware, budget)).failure, "");
      }
    }
  }
}

// Budgets between those that are scored: how the slabs come to lie is another matter in each.
TEST(SimulatorTest, GptGetsThroughAtEveryPercentOfItsFootprint) {
  const Hardware& hardware = *FindHardware("h200-pcie5");
  const Trace trace = Generate("gpt2-small", hardware, 3);
  for (const Hints hints : {Hints::kNone, Hints::kTime, Hints::kOrder}) {
    const Trace hinted = WithHints(trace, hints);
    for (uint64_t percent = 26; percent <= 50; ++percent) {
      SCOPED_TRACE(std::to_string(percent) + "%");
      const core::Bytes budget(trace.Footprint().count() / 100 * percent);
      EXPECT_EQ(Simulate(hinted, *SetupFor("value", hardware, budget)).failure, "");
    }
  }
}

// Two whose first iterations end together once went on in step, and stalled 100 ms in each of the
// next two. Out of step it is about 10.
TEST(SimulatorTest, TwoTenantsDoNotGoOnInStep) {
  const Hardware& hardware = *FindHardware("h200-pcie5");
  const Trace trace = Generate("two-tenants", hardware, 6);
  const core::Bytes budget(trace.Footprint().count() / 100 * 60);
  const auto lru = *SetupFor("demand-lru", hardware, budget);
  core::Duration stalls{0};
  core::Duration time{0};
  core::Duration time_of_lru{0};
  constexpr int kRuns = 8;
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    const Trace run = WithTimesPerturbed(trace, 0.1, seed);
    const Trace hinted = WithHints(run, Hints::kTime);
    const Outcome outcome = Simulate(hinted, *SetupFor("value", hardware, budget));
    stalls += StallFrom(outcome, 1);
    time += outcome.time;
    time_of_lru += Simulate(run, lru).time;
  }
  EXPECT_LT(stalls / kRuns, std::chrono::milliseconds(100));
  EXPECT_LT(time, time_of_lru);
}

// Hints for some of the tensors once made matters worse than hints for none, by up to 38%.
TEST(SimulatorTest, HintsForSomeAreNoWorseThanForNone) {
  struct Case {
    const char* name;
    const char* machine;
    int percent;
  };
  for (const auto& [name, machine, percent] : {Case{"gpt2-small", "workstation-24g", 70},
                                               {"gpt2-medium", "h200-pcie5", 90},
                                               {"cyclic-weights", "h200-pcie5", 70}}) {
    const Hardware& hardware = *FindHardware(machine);
    const Trace trace = Generate(name, hardware, 16);
    const core::Bytes budget(trace.Footprint().count() / 100 * static_cast<uint64_t>(percent));
    const auto setup = *SetupFor("value", hardware, budget);
    const Outcome learned = Simulate(trace, setup);
    const core::Duration most = StallFrom(learned, 8) * 21 / 20 + learned.compute / 100;
    for (const Hints hints : {Hints::kTime, Hints::kOrder}) {
      for (const double share : {0.3, 0.7}) {
        SCOPED_TRACE(std::string(name) + ": " + std::to_string(share));
        EXPECT_LE(StallFrom(Simulate(WithHints(trace, hints, share, 7), setup), 8), most);
      }
    }
  }
}

TEST(SimulatorTest, AnImpossibleBudgetFailsWithWords) {
  const Trace trace = Generate("cyclic-weights", kHardware[0], 1);
  const Outcome outcome = Simulate(trace, *SetupFor("value", kHardware[0], core::MiB(100)));
  EXPECT_NE(outcome.failure, "");
}

// One client's compute between `times` puts and gets of a tensor, which is recomputed each time.
Trace LongTrace(int times) {
  Trace trace;
  trace.tensors = {{0, core::MiB(4), ""}, {0, core::MiB(4), ""}};
  trace.ops = {{.kind = OpKind::kCreate, .tensor = 0}, {.kind = OpKind::kPut, .tensor = 0}};
  trace.ops[1].recompute = core::Duration(int64_t{1} << 48);
  for (int i = 0; i < times; ++i) {
    trace.ops.push_back({.kind = OpKind::kStep});
    trace.ops.push_back({.kind = OpKind::kCompute, .time = core::Duration(int64_t{1} << 47)});
  }
  return trace;
}

TEST(SimulatorTest, TimesThatDoNotFitFailInsteadOfWrapping) {
  // Beyond what Read takes: 2^16 computes of 2^47 ns are 2^63.
  const Trace trace = LongTrace(1 << 16);
  for (const Outcome& outcome : {Simulate(trace, *SetupFor("value", kHardware[0], core::GiB(1))),
                                 SimulateOracle(trace, kHardware[0], core::GiB(1))}) {
    EXPECT_EQ(outcome.failure, kTooLong);
    EXPECT_GE(outcome.time, core::Duration{0});
    EXPECT_GE(outcome.compute, core::Duration{0});
    EXPECT_LE(outcome.time, kReplayMax);
  }
}

TEST(SimulatorTest, TheTimelineKeepsIterationsAndMemory) {
  const Trace trace = Generate("resnet50", kHardware[0], 2);
  const core::Bytes budget = trace.Footprint().RoundUp(core::MiB(2));
  auto setup = *SetupFor("value", kHardware[0], budget);
  EXPECT_TRUE(Simulate(trace, setup).memory.empty());
  setup.timeline = true;
  const Outcome outcome = Simulate(trace, setup);
  const auto steps = std::count_if(trace.ops.begin(), trace.ops.end(),
                                   [](const Op& op) { return op.kind == OpKind::kStep; });
  EXPECT_EQ(outcome.steps.size(), static_cast<size_t>(steps));
  ASSERT_FALSE(outcome.memory.empty());
  core::Bytes most;
  for (size_t i = 0; i < outcome.memory.size(); ++i) {
    const MemoryPoint& point = outcome.memory[i];
    EXPECT_LE(point.used, point.held);
    EXPECT_LE(point.held, budget);
    if (i > 0) {
      EXPECT_LT(outcome.memory[i - 1].at, point.at);
    }
    most = std::max(most, point.used);
  }
  EXPECT_GT(most, core::Bytes(budget.count() / 2));
}

TEST(SimulatorTest, ABudgetBelowATensorIsNamedWithoutTheDaemonsOptions) {
  const Trace trace = Generate("resnet50", kHardware[0], 1);
  const Outcome outcome = Simulate(trace, *SetupFor("value", kHardware[0], core::MiB(2)));
  EXPECT_NE(outcome.failure.find("larger than the budget, which is 2.0 MiB"), std::string::npos)
      << outcome.failure;
  EXPECT_EQ(outcome.failure.find("device_budget"), std::string::npos);
}

}  // namespace
}  // namespace ravenstore::sim
