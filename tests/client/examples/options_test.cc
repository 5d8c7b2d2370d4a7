#include "client/examples/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace ravenstore::examples {
namespace {

using testing::HasSubstr;
using testing::Property;
using testing::ThrowsMessage;

TEST(OptionsTest, BytesHaveUnits) {
  EXPECT_EQ(ParseBytes("4096"), 4096u);
  EXPECT_EQ(ParseBytes("1.5GiB"), 1610612736u);
  EXPECT_EQ(ParseBytes("300 MB"), 300000000u);
  EXPECT_EQ(ParseBytes("2k"), 2048u);
}

TEST(OptionsTest, WhatIsNotBytesIsNamed) {
  for (const char* text : {"", "GiB", "-1", "3 parsecs", "nan", "0"})
    EXPECT_THAT([&] { ParseBytes(text); }, ThrowsMessage<std::runtime_error>(HasSubstr(text)))
        << text;
}

TEST(OptionsTest, DefaultsComeFromTheSizeAndFlagsOverrideThem) {
  const Options medium = ParseOptions({"--size", "medium", "--steps=7"});
  EXPECT_EQ(medium.layers, 24);
  EXPECT_EQ(medium.batch, 16);
  EXPECT_EQ(medium.seq, 1024);
  EXPECT_EQ(medium.steps, 7);
}

TEST(OptionsTest, BudgetsArePercentagesOrBytes) {
  const Options list = ParseOptions({"--budgets", "100,75,50%"});
  ASSERT_EQ(list.budgets.size(), 3u);
  EXPECT_EQ(list.budgets[1].Resolve(1000), 750u);
  EXPECT_EQ(list.budgets[2].Format(), "50%");
  EXPECT_EQ(ParseOptions({"--budget", "3MiB"}).budgets[0].Resolve(1000), 3u << 20);
  EXPECT_EQ(ParseOptions({"--budget", "20%"}).budgets[0].Resolve(1000), 200u);
}

TEST(OptionsTest, TorchMayHoldAPartOfTheBudget) {
  EXPECT_EQ(ParseOptions({}).torch_share, std::nullopt);
  EXPECT_EQ(ParseOptions({"--torch-share", "60%"}).torch_share, 60);
  EXPECT_THROW(ParseOptions({"--torch-share", "101"}), std::runtime_error);
}

TEST(OptionsTest, WrongArgumentsAreNamed) {
  const auto wrong = [](std::vector<std::string> arguments) {
    return [arguments] { ParseOptions(arguments); };
  };
  EXPECT_THAT(wrong({"--size", "huge"}), ThrowsMessage<std::runtime_error>(HasSubstr("huge")));
  EXPECT_THAT(wrong({"--steps"}), ThrowsMessage<std::runtime_error>(HasSubstr("--steps")));
  EXPECT_THAT(wrong({"--steps", "0"}), ThrowsMessage<std::runtime_error>(HasSubstr("--steps")));
  EXPECT_THAT(wrong({"--stepz", "3"}), ThrowsMessage<std::runtime_error>(HasSubstr("--stepz")));
  EXPECT_THAT(wrong({"--budgets", "50,,"}),
              ThrowsMessage<std::runtime_error>(HasSubstr("--budgets")));
  EXPECT_THAT(wrong({"--budget", "x%"}), ThrowsMessage<std::runtime_error>(HasSubstr("x%")));
  EXPECT_THAT(wrong({"--demo", "--plain"}), ThrowsMessage<std::runtime_error>(HasSubstr("--demo")));
}

TEST(OptionsTest, HintsAreGivenUnlessRefused) {
  EXPECT_FALSE(ParseOptions({}).no_hints);
  EXPECT_TRUE(ParseOptions({"--no-hints"}).no_hints);
}

}  // namespace
}  // namespace ravenstore::examples
