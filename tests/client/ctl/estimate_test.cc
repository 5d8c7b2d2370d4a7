#include "client/ctl/estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ravenstore::client::ctl {
namespace {

using core::Bytes;
using core::ErrorCode;
using core::GiB;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kNow = 10'000;

proto::JobKnown Known(Bytes peak, Bytes least, uint64_t runs) {
  proto::JobKnown known;
  proto::JobRecord& record = *known.mutable_record();
  record.set_runs(runs);
  record.set_peak(peak.count());
  record.set_last(peak.count());
  record.set_least(least.count());
  record.set_seen_s(kNow - 7200);
  return known;
}

TEST(EstimateTest, EarlierRunsGiveTheLargestAndATwentiethAsMargin) {
  const auto estimate = EstimateOf(Known(GiB(20), GiB(20), 3), kNow);
  ASSERT_TRUE(estimate.ok());
  EXPECT_EQ(estimate->source, "history");
  EXPECT_EQ(estimate->bytes, GiB(20));
  EXPECT_EQ(estimate->margin, GiB(1));
  EXPECT_EQ(estimate->total(), GiB(21));
  EXPECT_THAT(estimate->notes,
              ElementsAre("the largest of 3 earlier runs, the last 2 h 00 min ago"));
}

TEST(EstimateTest, ThatRunsVaryIsSaid) {
  const auto estimate = EstimateOf(Known(GiB(20), GiB(15), 2), kNow);
  EXPECT_THAT(estimate->notes.back(), HasSubstr("it varies: runs took 15.0 GiB to 20.0 GiB"));
}

TEST(EstimateTest, ARunThatHoldsMoreThanEarlierOnesCounts) {
  proto::JobKnown known = Known(GiB(20), GiB(20), 1);
  known.set_running(GiB(30).count());
  EXPECT_EQ(EstimateOf(known, kNow)->source, "running");
  EXPECT_EQ(EstimateOf(known, kNow)->bytes, GiB(30));
  known.clear_record();
  EXPECT_EQ(EstimateOf(known, kNow)->bytes, GiB(30));
}

TEST(EstimateTest, WithoutARunNothingIsKnown) {
  EXPECT_EQ(EstimateOf({}, kNow).error().code, ErrorCode::kNotFound);
}

TEST(EstimateTest, ThePackagesLastLineIsRead) {
  const auto estimate = EstimateIn(
      "Epoch 1\n{\"used\": 10, \"reserved\": 20, \"context\": 5, \"total\": 25, \"margin\": 3, "
      "\"source\": \"formula\", \"notes\": [\"one\", \"two\"], \"job\": \"" +
      std::string(64, 'a') + "\"}\n");
  ASSERT_TRUE(estimate.ok());
  EXPECT_EQ(estimate->bytes, Bytes{25});
  EXPECT_EQ(estimate->margin, Bytes{3});
  EXPECT_EQ(estimate->source, "formula");
  EXPECT_EQ(estimate->model, std::string(32, 'a'));
  EXPECT_THAT(estimate->notes, ElementsAre("one", "two"));
}

TEST(EstimateTest, WhatIsNoEstimateIsRefused) {
  for (const char* text :
       {"", "\n", "done", "{}", "[1]", "{\"used\": 1, \"reserved\": 1, \"total\": 1}",
        "{\"used\": 1, \"reserved\": 1, \"total\": -1, \"margin\": 0}",
        "{\"used\": 1, \"reserved\": 1, \"total\": 1e30, \"margin\": 0}"})
    EXPECT_EQ(EstimateIn(text).error().code, ErrorCode::kCorrupt) << text;
}

TEST(EstimateTest, AScriptIsReckonedByItsOwnPythonWithItsOptions) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(
      PackageCommand({"/env/bin/python3.11", "-u", "-X", "dev", "train.py", "-m", "5"}).value(),
      (Words{"/env/bin/python3.11", "-u", "-X", "dev", "-m", "ravenstore.estimate", "--json",
             "train.py", "-m", "5"}));
  EXPECT_EQ(PackageCommand({"./train.py", "x"}).value(),
            (Words{"python3", "-m", "ravenstore.estimate", "--json", "./train.py", "x"}));
  for (const Words& command :
       {Words{"python"}, Words{"python", "-m", "train"}, Words{"python", "-c", "pass"},
        Words{"python", "-"}, Words{"python", "-X"}, Words{"./train.sh"}, Words{"python", "train"}})
    EXPECT_EQ(PackageCommand(command).error().code, ErrorCode::kUnsupported);
}

TEST(EstimateTest, OutputIsWhatAProgramPrintsAndItsFailureIsOne) {
  EXPECT_EQ(OutputOf({"sh", "-c", "echo one; echo two"}).value(), "one\ntwo\n");
  EXPECT_EQ(OutputOf({"sh", "-c", "echo one; exit 2"}).error().code, ErrorCode::kSystem);
  EXPECT_EQ(OutputOf({"/no/such/program"}).error().code, ErrorCode::kSystem);
}

TEST(EstimateTest, TextAndJsonSayAllOfIt) {
  const Estimate estimate{.job = "k",
                          .model = "m",
                          .source = "capture",
                          .bytes = GiB(2),
                          .margin = GiB(1),
                          .notes = {"a note\n"}};
  EXPECT_EQ(EstimateText(estimate),
            "3.0 GiB: 2.0 GiB by capture and a margin of 1.0 GiB\n  a note?\n");
  EXPECT_EQ(EstimateJson(estimate),
            "{\"job\":\"k\",\"model\":\"m\",\"source\":\"capture\",\"bytes\":2147483648,"
            "\"margin\":1073741824,\"total\":3221225472,\"notes\":[\"a note\\u000a\"]}\n");
}

}  // namespace
}  // namespace ravenstore::client::ctl
