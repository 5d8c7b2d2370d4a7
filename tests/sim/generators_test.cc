#include "sim/generators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

namespace ravenstore::sim {
namespace {

const Hardware& H200() {
  return *FindHardware("h200-pcie5");
}

core::Bytes SumOfFirst(const Trace& trace, size_t tensors) {
  core::Bytes sum;
  for (size_t i = 0; i < tensors; ++i) sum += trace.tensors[i].bytes;
  return sum;
}

core::Duration Compute(const Trace& trace) {
  core::Duration sum{0};
  for (const Op& op : trace.ops) sum += op.time;
  return sum;
}

// 34 sbh + 4 abs bytes in 16 bit: attention saves eight tensors, the MLP five.
TEST(GeneratorsTest, LayersOfGptSaveWhatTheFormulaSays) {
  const std::map<std::string, double> megabytes = {
      {"gpt2-small", 214}, {"gpt2-medium", 286}, {"gpt2-xl", 446}};
  for (const auto& [name, layer] : megabytes) {
    const Trace trace = Generate(name, H200(), 1);
    const double measured = static_cast<double>(SumOfFirst(trace, 13).count()) / 1e6;
    EXPECT_NEAR(measured, layer, layer * 0.01) << name;
  }
}

TEST(GeneratorsTest, LayersOfGptTakeTheTimeOfTheFormula) {
  // Milliseconds of a layer forward on an H200; backward takes twice that.
  const std::map<std::string, std::pair<int, double>> layers = {
      {"gpt2-small", {12, 0.35}}, {"gpt2-medium", {24, 0.60}}, {"gpt2-xl", {48, 1.39}}};
  for (const auto& [name, shape] : layers) {
    const Trace trace = Generate(name, H200(), 1);
    double forward = 0;
    for (const Op& op : trace.ops) {
      if (op.kind == OpKind::kGet) break;
      if (op.kind == OpKind::kCompute)
        forward += std::chrono::duration<double, std::milli>(op.time).count();
    }
    // The logits' product is in it as well.
    EXPECT_GT(forward, shape.first * shape.second * 0.97) << name;
    EXPECT_LT(forward, shape.first * shape.second * 1.6) << name;
    const std::chrono::duration<double, std::milli> all = Compute(trace);
    EXPECT_NEAR(all.count(), 3 * forward, forward * 0.01);
  }
}

TEST(GeneratorsTest, EachSaysWhatItIs) {
  EXPECT_EQ(DescriptionOf("gpt2-xl"),
            "training, 48 layers of 1600, batch 8, sequence 1024, 16 bit");
  for (const auto& names : {GeneratorNames(), ValidationNames()}) {
    for (const std::string& name : names) EXPECT_FALSE(DescriptionOf(name).empty()) << name;
  }
}

TEST(GeneratorsTest, SameSeedSameTrace) {
  for (const std::string& name : GeneratorNames()) {
    const Trace a = Generate(name, H200(), 2, 5);
    const Trace b = Generate(name, H200(), 2, 5);
    ASSERT_EQ(a.ops.size(), b.ops.size()) << name;
    for (size_t i = 0; i < a.ops.size(); ++i) {
      ASSERT_EQ(a.ops[i].kind, b.ops[i].kind) << name << " " << i;
      ASSERT_EQ(a.ops[i].tensor, b.ops[i].tensor) << name << " " << i;
    }
  }
}

TEST(GeneratorsTest, DisturbancesKeepTracesValid) {
  for (const std::string& name : GeneratorNames()) {
    const Trace trace = Generate(name, H200(), 4);
    const Trace times = WithTimesPerturbed(trace, 0.25, 3);
    const Trace reordered = WithReorder(trace, 0.05, 3);
    const Trace period = WithPeriodChanged(trace, 2, 0.75);
    for (const Trace* one : {&times, &reordered, &period}) {
      ASSERT_TRUE(Validate(*one).ok()) << name << ": " << Validate(*one).error().message;
      EXPECT_EQ(one->ops.size(), trace.ops.size()) << name;
    }
    EXPECT_EQ(Compute(reordered), Compute(trace)) << name;
    const double ratio =
        static_cast<double>(Compute(times).count()) / static_cast<double>(Compute(trace).count());
    EXPECT_NEAR(ratio, 1, 0.25) << name;
    EXPECT_LE(Compute(period), Compute(trace)) << name;
  }
}

// As a recorded trace may have them: a get, its put, and the same tensor's last get and free.
TEST(GeneratorsTest, ReorderingKeepsTheOrderOfATensorsUses) {
  Trace trace;
  trace.tensors = {{0, core::MiB(1), ""}, {0, core::MiB(1), ""}};
  const Op compute = {.kind = OpKind::kCompute, .time = std::chrono::microseconds(1)};
  for (const uint32_t tensor : {0u, 1u}) {
    trace.ops.push_back({.kind = OpKind::kCreate, .tensor = tensor});
    trace.ops.push_back({.kind = OpKind::kPut, .tensor = tensor, .modified = true});
  }
  for (int round = 0; round < 20; ++round) {
    for (const uint32_t tensor : {0u, 0u, 1u}) {
      trace.ops.push_back({.kind = OpKind::kGet, .tensor = tensor});
      trace.ops.push_back(compute);
      trace.ops.push_back({.kind = OpKind::kPut, .tensor = tensor});
    }
  }
  trace.ops.push_back({.kind = OpKind::kGet, .tensor = 0});
  trace.ops.push_back(compute);
  trace.ops.push_back({.kind = OpKind::kFree, .tensor = 0});
  ASSERT_TRUE(Validate(trace).ok());
  bool moved = false;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Trace reordered = WithReorder(trace, 0.5, seed);
    ASSERT_TRUE(Validate(reordered).ok()) << seed << ": " << Validate(reordered).error().message;
    for (size_t i = 0; i < trace.ops.size(); ++i)
      moved = moved || reordered.ops[i].tensor != trace.ops[i].tensor;
  }
  EXPECT_TRUE(moved);
}

TEST(GeneratorsTest, HintsPredictTheRestOfTheTrace) {
  const Trace trace = WithHints(Generate("cyclic-weights", H200(), 2), Hints::kTime);
  // Simulated by hand: the compute between each put and the next get of the same tensor.
  std::map<uint32_t, std::pair<core::Duration, core::Duration>> hinted;  // when, what
  core::Duration now{0};
  size_t checked = 0;
  for (const Op& op : trace.ops) {
    now += op.time;
    if (op.kind == OpKind::kGet) {
      ASSERT_TRUE(hinted.contains(op.tensor));
      EXPECT_EQ(hinted[op.tensor].first + hinted[op.tensor].second, now);
      ++checked;
    }
    if (op.kind != OpKind::kPut) continue;
    hinted.erase(op.tensor);
    if (op.next_use.kind == core::NextUse::Kind::kIn) hinted[op.tensor] = {now, op.next_use.in};
  }
  EXPECT_EQ(checked, 96u);
}

TEST(GeneratorsTest, DroppedHintsAreDropped) {
  const Trace trace = WithHints(Generate("gpt2-small", H200(), 2), Hints::kTime, 0.7, 1);
  size_t puts = 0;
  size_t hinted = 0;
  for (const Op& op : trace.ops) {
    puts += op.kind == OpKind::kPut;
    hinted += op.kind == OpKind::kPut && op.next_use.kind != core::NextUse::Kind::kUnknown;
  }
  EXPECT_NEAR(static_cast<double>(hinted) / static_cast<double>(puts), 0.7, 0.05);
}

}  // namespace
}  // namespace ravenstore::sim
