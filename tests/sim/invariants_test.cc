// What must hold at every moment of every trace, whatever the policy.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "sim/generators.h"
#include "sim/render.h"
#include "sim/score.h"
#include "sim/simulator.h"
#include "sim/trace.h"
#include "tests/sim/checker.h"

namespace ravenstore::sim {
namespace {

using core::Bytes;
using core::Policy;

// Each client's first calls, and then all is freed.
Trace Beginning(const Trace& trace, size_t calls) {
  Trace result = trace;
  std::vector<size_t> left(trace.clients, calls);
  std::erase_if(result.ops, [&left](const Op& op) {
    if (left[op.client] == 0) return true;
    --left[op.client];
    return false;
  });
  std::vector<bool> programs(trace.tensors.size());
  for (const Op& op : result.ops) {
    if (op.kind == OpKind::kCreate) programs[op.tensor] = true;
    if (op.kind == OpKind::kFree) programs[op.tensor] = false;
  }
  for (uint32_t i = 0; i < programs.size(); ++i) {
    if (!programs[i]) continue;
    result.ops.push_back({.kind = OpKind::kFree, .client = trace.tensors[i].client, .tensor = i});
  }
  return result;
}

Bytes Share(const Trace& trace, uint64_t percent) {
  const Bytes share(trace.Footprint().count() / 100 * percent);
  // Twice what is in use at once, so that holes between tensors in use do not matter.
  return std::max(share, trace.LargestStep() * 2).RoundUp(core::MiB(2));
}

class InvariantsTest : public testing::TestWithParam<std::string> {
 protected:
  static constexpr size_t kCalls = 5000;

  void Watch(const Trace& trace, const Checker::Setting& setting) {
    Checker checker(trace, setting);
    EXPECT_EQ(checker.Run(), "");
    copies_ += checker.counts().copies_begun;
    drops_ += checker.counts().drops;
    slabs_ += checker.counts().slabs;
  }
  void ExpectMuchWasWatched() const {
    EXPECT_GT(copies_, 100u);
    EXPECT_GT(drops_, 0u);
    EXPECT_GT(slabs_, 0u);
  }

 private:
  uint64_t copies_ = 0;
  uint64_t drops_ = 0;
  uint64_t slabs_ = 0;
};

TEST_P(InvariantsTest, HoldUnderEveryPolicy) {
  const Trace trace = Beginning(Generate(GetParam(), kHardware[0], 3), kCalls);
  for (const Policy policy : {Policy::kValue, Policy::kLru, Policy::kGdsf}) {
    for (const uint64_t percent : {35u, 60u, 85u}) {
      SCOPED_TRACE(testing::Message() << "policy " << int(policy) << ", " << percent << "%");
      Watch(trace, {.budget = Share(trace, percent), .policy = policy});
    }
  }
  ExpectMuchWasWatched();
}

TEST_P(InvariantsTest, HoldWhateverIsToldOfTheFuture) {
  const Trace whole = Generate(GetParam(), kHardware[0], 3);
  for (const Hints hints : {Hints::kNone, Hints::kOrder, Hints::kTime}) {
    for (const double share : {1.0, 0.5}) {
      SCOPED_TRACE(testing::Message() << "hints " << int(hints) << ", share " << share);
      const Trace trace = Beginning(WithHints(whole, hints, share), kCalls);
      Watch(trace, {.budget = Share(trace, 50)});
      Watch(trace, {.budget = Share(trace, 50), .learn = false, .preclean = false});
    }
  }
  ExpectMuchWasWatched();
}

TEST_P(InvariantsTest, HoldInSmallSlabsAndAtOtherSpeeds) {
  Trace whole = Generate(GetParam(), kHardware[0], 3);
  whole = WithTimesPerturbed(WithReorder(whole, 0.05, 1), 0.25, 1);
  const Trace trace = Beginning(WithHints(whole, Hints::kTime, 0.8), kCalls);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Watch(trace, {.budget = Share(trace, 45), .slab = core::MiB(32), .seed = seed});
  }
  ExpectMuchWasWatched();
}

std::string NameOf(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Traces, InvariantsTest, testing::ValuesIn(GeneratorNames()), NameOf);

// ---- Rivals.

// Clients that each use one of their tensors at a time, in no order, and compute in between.
Trace Rivals(uint32_t clients, uint64_t seed) {
  constexpr uint32_t kTensors = 10;
  std::mt19937_64 random(seed);
  const auto below = [&random](uint64_t bound) { return static_cast<uint32_t>(random() % bound); };
  Trace trace;
  trace.name = "rivals";
  trace.clients = clients;
  for (uint32_t client = 0; client < clients; ++client) {
    const auto first = static_cast<uint32_t>(trace.tensors.size());
    const auto op = [&](OpKind kind, uint32_t tensor) {
      trace.ops.push_back({.kind = kind, .client = client, .tensor = first + tensor});
      return &trace.ops.back();
    };
    for (uint32_t i = 0; i < kTensors; ++i) {
      trace.tensors.push_back({client, core::MiB(1 + below(16)), ""});
      op(OpKind::kCreate, i);
      op(OpKind::kPut, i)->modified = true;
    }
    for (int use = 0; use < 60; ++use) {
      const uint32_t tensor = below(kTensors);
      op(OpKind::kGet, tensor);
      op(OpKind::kCompute, 0)->time = std::chrono::microseconds(below(2000));
      op(OpKind::kPut, tensor)->modified = below(2) == 0;
      op(OpKind::kCompute, 0)->time = std::chrono::microseconds(below(500));
    }
    for (uint32_t i = 0; i < kTensors; ++i) op(OpKind::kFree, i);
  }
  return trace;
}

// Each could have what it uses at once beside the others' at any time, so each gets through, and
// nobody is forgotten: the referee knows no deadlines.
TEST(RivalsTest, AllGetThrough) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const uint32_t clients = 2 + static_cast<uint32_t>(seed % 3);
    const Trace trace = Rivals(clients, seed);
    ASSERT_TRUE(Validate(trace).ok());
    // In the large slab whoever comes first has all, and has to give all.
    for (const Bytes slab : {core::MiB(16), core::MiB(256)}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", slabs of " << slab.count());
      Checker checker(trace, {.budget = core::MiB(32) * clients, .slab = slab, .seed = seed});
      EXPECT_EQ(checker.Run(), "");
    }
  }
}

// ---- The same again.

std::string JsonOf(const std::string& name, const std::string& policy, uint64_t seed) {
  const Hardware& hardware = kHardware[0];
  const Trace trace = Beginning(Generate(name, hardware, 3, seed), 4000);
  const Bytes budget = Share(trace, 60);
  RunReport report;
  report.trace = trace.name;
  report.hardware = hardware.name;
  report.policy = policy;
  report.budget = budget;
  report.outcome = Simulate(trace, *SetupFor(policy, hardware, budget));
  report.bound = LeastStall(trace, hardware, budget);
  return Json(report);
}

TEST(DeterminismTest, SameTracePolicyAndSeedGiveTheSameBytes) {
  for (const std::string& name : GeneratorNames()) {
    for (const std::string& policy : PolicyNames()) {
      const std::string first = JsonOf(name, policy, 7);
      EXPECT_EQ(first, JsonOf(name, policy, 7)) << name << " " << policy;
      EXPECT_NE(first.find("\"policy\":\"" + policy + "\""), std::string::npos) << first;
    }
  }
}

TEST(DeterminismTest, AnotherSeedIsAnotherRun) {
  EXPECT_NE(JsonOf("zipf", "value", 7), JsonOf("zipf", "value", 8));
}

}  // namespace
}  // namespace ravenstore::sim
