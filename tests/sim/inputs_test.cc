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
  EXPECT_NE(loaded.error().message.find("at most 1023.0 GiB"), std::string::npos)
      << loaded.error().message;
}

TEST(InputsTest, UnknownNamesAreRefused) {
  EXPECT_FALSE(Load({.name = "moe", .hardware = "abacus"}).ok());
  EXPECT_FALSE(Load({.name = "moe", .hints = "maybe"}).ok());
  EXPECT_FALSE(Load({.name = "moe", .disturb = "weather"}).ok());
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

TEST(InputsTest, BudgetsAreSharesOrSizes) {
  Trace trace;
  trace.tensors = {{0, core::Bytes(1000), ""}};
  trace.ops = {{.kind = OpKind::kCreate, .tensor = 0}};
  EXPECT_EQ(*ParseBudget("60%", trace), core::Bytes(600));
  EXPECT_EQ(*ParseBudget("2GiB", trace), core::GiB(2));
  for (const char* wrong : {"", "%", "-3%", "x%", "60%%", "many", "nan%"})
    EXPECT_FALSE(ParseBudget(wrong, trace).ok()) << wrong;
}

}  // namespace
}  // namespace ravenstore::sim
