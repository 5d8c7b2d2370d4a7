#include "sim/validation_traces.h"

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

constexpr int kIterations = 3;

struct Iteration {
  std::vector<std::pair<OpKind, Bytes>> calls;
  core::Duration compute{0};
};

// Of one client; the set-up is the first.
std::vector<Iteration> IterationsOf(const Trace& trace, uint32_t client) {
  std::vector<Iteration> iterations(1);
  for (const Op& op : trace.ops) {
    if (op.client != client) continue;
    const bool of_a_tensor = op.kind != OpKind::kCompute && op.kind != OpKind::kStep;
    iterations.back().calls.emplace_back(op.kind,
                                         of_a_tensor ? trace.tensors[op.tensor].bytes : Bytes{});
    iterations.back().compute += op.time;
    if (op.kind == OpKind::kStep) iterations.emplace_back();
  }
  iterations.pop_back();  // what is freed in the end
  return iterations;
}

class ValidationTracesTest : public testing::TestWithParam<std::string> {
 protected:
  Trace Get(uint64_t seed = 1) { return Generate(GetParam(), kHardware[0], kIterations, seed); }
};

// What docs/TRACES.md says of them.
TEST_P(ValidationTracesTest, HasTheCallsAndTheFootprintThatItIsSaidToHave) {
  struct Said {
    double calls;  // thousands an iteration of the first client
    double gigabytes;
  };
  const std::map<std::string, Said> all = {
      {"t5-large", {38, 48.8}},     {"llama-7b-lora", {25, 24.3}}, {"efficientnet-b4", {16, 31.6}},
      {"densenet-201", {40, 26.0}}, {"graphsage", {2.9, 11.0}},    {"dlrm", {6.5, 12.6}},
      {"wav2vec2", {10, 30.0}},     {"dit-xl-2", {17, 44.3}},      {"efficientnet-t5", {16, 45.4}},
      {"prefix-cache", {15, 16}}};
  const Said& said = all.at(GetParam());
  const Trace trace = Get();
  ASSERT_TRUE(Validate(trace).ok()) << Validate(trace).error().message;
  const double gigabytes = static_cast<double>(trace.Footprint().count()) / 1e9;
  EXPECT_NEAR(gigabytes, said.gigabytes, said.gigabytes * 0.05);
  EXPECT_GE(gigabytes, 10);
  EXPECT_LE(gigabytes, 60);
  for (uint32_t client = 0; client < trace.clients; ++client) {
    const auto iterations = IterationsOf(trace, client);
    for (size_t i = 1; i < iterations.size(); ++i) {
      EXPECT_GE(iterations[i].calls.size(), 1000u) << i;
      EXPECT_LE(iterations[i].calls.size(), 100'000u) << i;
    }
    if (client > 0) continue;
    const double calls = static_cast<double>(iterations.back().calls.size()) / 1000;
    EXPECT_NEAR(calls, said.calls, said.calls * 0.15);
  }
}

std::vector<core::Duration> TimesOf(const Trace& trace) {
  std::vector<core::Duration> times;
  for (const Op& op : trace.ops) times.push_back(op.time);
  return times;
}

TEST_P(ValidationTracesTest, IsTheSameForTheSameSeedOnly) {
  const Trace trace = Get(5);
  const Trace same = Get(5);
  const Trace other = Get(6);
  EXPECT_EQ(same.Fingerprint(), trace.Fingerprint());
  EXPECT_EQ(TimesOf(same), TimesOf(trace));
  EXPECT_NE(TimesOf(other), TimesOf(trace));
  // Where iterations repeat, a seed makes nothing but noise.
  EXPECT_EQ(other.Fingerprint() == trace.Fingerprint(), IsPeriodic(GetParam()));
}

TEST_P(ValidationTracesTest, FreesAllThatItMade) {
  const Trace trace = Get();
  std::set<uint32_t> alive;
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kCreate) alive.insert(op.tensor);
    if (op.kind == OpKind::kFree) alive.erase(op.tensor);
  }
  EXPECT_TRUE(alive.empty());
}

// Whether iterations are the same, but for the noise of their times, is what IsPeriodic says.
TEST_P(ValidationTracesTest, IterationsAreAlikeWhereItIsPeriodic) {
  const Trace trace = Get();
  EXPECT_TRUE(IsKernelLevel(GetParam()));
  for (uint32_t client = 0; client < trace.clients; ++client) {
    const auto iterations = IterationsOf(trace, client);
    ASSERT_GT(iterations.size(), static_cast<size_t>(kIterations));
    const Iteration& one = iterations[iterations.size() - 2];
    const Iteration& other = iterations.back();
    EXPECT_EQ(one.calls == other.calls, IsPeriodic(GetParam()));
    EXPECT_NE(one.compute, other.compute);
    if (IsPeriodic(GetParam())) {
      EXPECT_NEAR(core::Seconds(one.compute) / core::Seconds(other.compute), 1, 0.02);
    }
  }
}

// At its footprint every trace gets through; room between what is in use may cost it some stall.
// Where there is twice the room, it has none.
TEST_P(ValidationTracesTest, ReplaysAtItsFootprint) {
  const Trace trace = Get();
  for (const char* machine : {"h200-pcie5", "a100-pcie4"}) {
    const Hardware& hardware = *FindHardware(machine);
    const Bytes footprint = trace.Footprint().RoundUp(core::MiB(2));
    const Outcome all = ReplayUnder("hints", trace, {.hardware = hardware, .budget = footprint});
    EXPECT_EQ(all.failure, "") << machine;
    const Outcome ample =
        ReplayUnder("hints", trace, {.hardware = hardware, .budget = footprint * 2});
    EXPECT_EQ(ample.failure, "") << machine;
    EXPECT_EQ(ample.stall, core::Duration{0}) << machine;
    EXPECT_EQ(ample.up, Bytes{}) << machine;
  }
}

std::string NameOf(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Set, ValidationTracesTest, testing::ValuesIn(ValidationNames()), NameOf);

TEST(ValidationTracesSetTest, SharesNoNameWithTheTuningSet) {
  EXPECT_EQ(ValidationNames().size(), 10u);
  for (const std::string& name : ValidationNames())
    EXPECT_EQ(std::count(GeneratorNames().begin(), GeneratorNames().end(), name), 0) << name;
}

TEST(ValidationTracesSetTest, TwoTogetherKeepTheirCallsAndTensors) {
  const Trace one = Generate("mobilenet", kHardware[0], 1);
  const Trace other = Generate("lstm", kHardware[0], 1);
  const Trace both = Merge("both", one, other);
  ASSERT_TRUE(Validate(both).ok());
  EXPECT_EQ(both.name, "both");
  EXPECT_EQ(both.clients, 2u);
  EXPECT_EQ(both.FootprintByClient(), (std::vector<Bytes>{one.Footprint(), other.Footprint()}));
  EXPECT_EQ(both.ops.size(), one.ops.size() + other.ops.size());
}

// Small tensors next to large ones, but for those that are all of one size.
TEST(ValidationTracesSetTest, TensorsAreOfHundredsOfBytesToGigabytes) {
  Bytes most;
  for (const std::string& name : ValidationNames()) {
    const Trace trace = Generate(name, kHardware[0], 1);
    if (name == "prefix-cache") continue;
    Bytes least = trace.tensors.front().bytes;
    for (const TraceTensor& tensor : trace.tensors) {
      least = std::min(least, tensor.bytes);
      most = std::max(most, tensor.bytes);
    }
    EXPECT_EQ(least, Bytes(512)) << name;
  }
  EXPECT_GT(most, core::GiB(1));
}

}  // namespace
}  // namespace ravenstore::sim
