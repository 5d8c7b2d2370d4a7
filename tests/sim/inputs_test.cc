#include "sim/inputs.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace ravenstore::sim {
namespace {

TEST(InputsTest, LoadsGeneratorsAndFiles) {
  const auto trace = Load({.name = "resnet50", .iterations = 2});
  ASSERT_TRUE(trace.ok());
  const std::string path = testing::TempDir() + "/resnet50.trace";
  {
    std::ofstream file(path, std::ios::binary);
    Write(*trace, file);
  }
  const auto read = Load({.name = path});
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->ops.size(), trace->ops.size());
  EXPECT_EQ(Load({.name = path + ".not"}).error().code, core::ErrorCode::kNotFound);
}

TEST(InputsTest, WhatNoPoolCouldHoldIsRefused) {
  Trace trace;
  trace.name = "vast";
  for (uint32_t tensor = 0; tensor < 3; ++tensor) {
    trace.tensors.push_back({0, core::GiB(500), ""});
    trace.ops.push_back({.kind = OpKind::kCreate, .tensor = tensor});
  }
  const std::string path = testing::TempDir() + "/vast.trace";
  {
    std::ofstream file(path, std::ios::binary);
    Write(trace, file);
  }
  const auto loaded = Load({.name = path});
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, core::ErrorCode::kLimit) << "no wrong usage";
  EXPECT_NE(loaded.error().message.find("at most 1023.0 GiB"), std::string::npos)
      << loaded.error().message;
}

TEST(InputsTest, UnknownNamesAreRefused) {
  EXPECT_FALSE(Load({.name = "moe", .hardware = "abacus"}).ok());
  EXPECT_FALSE(Load({.name = "moe", .hints = "maybe"}).ok());
  EXPECT_FALSE(Load({.name = "moe", .disturb = "weather"}).ok());
}

TEST(InputsTest, PoolsAreSaidByKindSizeAndRates) {
  const Trace trace = *Load({.name = "resnet50", .iterations = 1});
  sim::ReplaySetup setup;
  ASSERT_TRUE(AddPool("host:25%", trace, &setup).ok());
  ASSERT_TRUE(AddPool("peer:4GiB:390:380", trace, &setup).ok());
  ASSERT_TRUE(AddPool("file:1TiB:7:5.5", trace, &setup).ok());
  EXPECT_EQ(setup.host, ParseBudget("25%", trace)->bytes);
  ASSERT_EQ(setup.pools.size(), 2u);
  EXPECT_EQ(setup.pools[0].kind, core::PoolKind::kPeer);
  EXPECT_EQ(setup.pools[0].capacity, core::GiB(4));
  EXPECT_EQ(setup.pools[0].in, 390e9);
  EXPECT_EQ(setup.pools[0].out, 380e9);
  EXPECT_EQ(setup.pools[1].kind, core::PoolKind::kFile);
  EXPECT_EQ(setup.pools[1].out, 5.5e9);
}

TEST(InputsTest, WhatOtherNodesLendIsAPool) {
  const Trace trace = *Load({.name = "resnet50", .iterations = 1});
  sim::ReplaySetup setup;
  ASSERT_TRUE(AddPool("remote:4GiB:1.2:1.1", trace, &setup).ok());
  ASSERT_TRUE(AddPool("remote:1GiB:10:9:latency=0.5", trace, &setup).ok());
  ASSERT_EQ(setup.pools.size(), 2u);
  EXPECT_EQ(setup.pools[0].kind, core::PoolKind::kRemote);
  EXPECT_EQ(setup.pools[0].capacity, core::GiB(4));
  EXPECT_EQ(setup.pools[1].latency, std::chrono::microseconds(500));
}

TEST(InputsTest, WhatIsNoPoolIsRefusedInWords) {
  const Trace trace = *Load({.name = "resnet50", .iterations = 1});
  const std::pair<const char*, const char*> wrong[] = {
      {"", "neither host:SIZE nor peer:SIZE:IN:OUT"},
      {"peer:1GiB", "neither host:SIZE nor peer:SIZE:IN:OUT"},
      {"host:1GiB:7:5", "neither host:SIZE nor peer:SIZE:IN:OUT"},
      {"tape:1GiB:7:5", "of no known kind"},
      {"peer:much:7:5", "has no size"},
      {"file:4096GiB:7:5", "larger than 2.0 TiB"},
      {"file:1GiB:7:fast", "\"fast\", which is no rate"},
      {"file:1GiB:0:5", "\"0\", which is no rate"},
      {"host:2GiB", "a second host pool"},
      {"remote:1GiB", "nor remote:SIZE:IN:OUT"},
      {"remote:1GiB:7:5:soon", "\"soon\", which is not latency=MS"},
      {"remote:1GiB:7:5:latency=-1", "which is not latency=MS"},
      {"remote:1GiB:7:5:recall=3", "which is not latency=MS"},
  };
  sim::ReplaySetup setup;
  ASSERT_TRUE(AddPool("host:1GiB", trace, &setup).ok());
  for (const auto& [text, words] : wrong) {
    const core::Status status = AddPool(text, trace, &setup);
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(status.error().code, core::ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message.find(words), std::string::npos) << status.error().message;
  }
  EXPECT_TRUE(setup.pools.empty());
}

TEST(InputsTest, TheLinkOfAMachineCanBeSaid) {
  const Hardware named = *FindHardware("a100-pcie4");
  TraceChoice choice = {.name = "moe", .hardware = "a100-pcie4"};
  EXPECT_EQ(HardwareOf(choice)->up, named.up);
  choice.up = 12.5;
  EXPECT_EQ(HardwareOf(choice)->up, 12.5e9);
  EXPECT_EQ(HardwareOf(choice)->down, named.down);
  choice.down = 3;
  EXPECT_EQ(HardwareOf(choice)->down, 3e9);
}

TEST(InputsTest, EveryChoiceIsKnown) {
  for (const auto hints : kHintChoices)
    EXPECT_TRUE(Load({.name = "gpt2-small", .iterations = 1, .hints = std::string(hints)}).ok());
  for (const auto disturb : kDisturbances)
    EXPECT_TRUE(
        Load({.name = "gpt2-small", .iterations = 2, .disturb = std::string(disturb)}).ok());
}

TEST(InputsTest, ComputeTimesAreScaledToASum) {
  const auto sum = [](const Trace& trace) {
    core::Duration all{0};
    for (const Op& op : trace.ops) all += op.time;
    return core::Seconds(all);
  };
  const auto load = [](std::optional<double> compute) {
    return Load({.name = "gpt2-small", .iterations = 1, .hints = "time", .compute = compute});
  };
  const Trace plain = *load(std::nullopt);
  const Trace half = *load(sum(plain) / 2);
  EXPECT_NEAR(sum(half), sum(plain) / 2, sum(plain) * 1e-4);
  ASSERT_EQ(half.ops.size(), plain.ops.size());
  for (size_t i = 0; i < plain.ops.size(); ++i) {
    const auto at = [i](const Trace& of) { return of.ops[i].next_use.in.count(); };
    // The hints are computed from the scaled times.
    EXPECT_NEAR(static_cast<double>(at(half)), static_cast<double>(at(plain)) / 2, 1e4) << i;
  }
  const auto too_long = load(1e9);
  ASSERT_FALSE(too_long.ok());
  EXPECT_NE(too_long.error().message.find("cannot be scaled"), std::string::npos);
}

TEST(InputsTest, BudgetsAreSharesOrSizes) {
  Trace trace;
  trace.ops = {{.kind = OpKind::kCreate, .tensor = 0}};
  trace.tensors = {{0, core::GiB(10), ""}};
  EXPECT_EQ(ParseBudget("60%", trace)->bytes, core::GiB(6));
  EXPECT_EQ(ParseBudget("60%", trace)->percent, 60);
  EXPECT_EQ(ParseBudget("2GiB", trace)->bytes, core::GiB(2));
  EXPECT_EQ(ParseBudget("2GiB", trace)->percent, 20);
  for (const char* wrong : {"", "%", "-3%", "x%", "60%%", "many", "nan%", "0", "1MiB"}) {
    ASSERT_FALSE(ParseBudget(wrong, trace).ok()) << wrong;
    EXPECT_EQ(ParseBudget(wrong, trace).error().code, core::ErrorCode::kInvalidArgument) << wrong;
  }
}

TEST(InputsTest, AllOfASmallFootprintFitsInAHundredPercent) {
  Trace trace;
  trace.clients = 2;
  trace.tensors = {{0, core::Bytes(1000), ""}, {1, core::MiB(3), ""}};
  trace.ops = {{.kind = OpKind::kCreate, .client = 0, .tensor = 0},
               {.kind = OpKind::kCompute, .client = 0, .time = core::Duration(1000)},
               {.kind = OpKind::kCreate, .client = 1, .tensor = 1},
               {.kind = OpKind::kCompute, .client = 1, .time = core::Duration(1000)}};
  const auto budget = ParseBudget("100%", trace);
  ASSERT_TRUE(budget.ok());
  EXPECT_EQ(budget->bytes, core::MiB(6)) << "each client's part in whole units";
  EXPECT_EQ(budget->percent, 100);
  EXPECT_EQ(ReplayUnder("hints", trace, {.budget = budget->bytes}).failure, "");
}

TEST(InputsTest, AMistypedGeneratorSuggestsTheOneThatWasMeant) {
  const auto loaded = Load({.name = "resnet5"});
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, core::ErrorCode::kNotFound);
  EXPECT_NE(loaded.error().message.find("did you mean \"resnet50\"?"), std::string::npos);
}

}  // namespace
}  // namespace ravenstore::sim
