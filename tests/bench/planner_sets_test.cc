#include "bench/planner_sets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "sim/generators.h"
#include "sim/trace_builder.h"

namespace ravenstore::bench {
namespace {

const sim::Hardware& AnyHardware() {
  return *sim::FindHardware(kScoreMachines[0]);
}

std::set<std::string> NamesOf(const TraceSet& set) {
  std::set<std::string> names;
  for (const TraceSet::Entry& entry : set.traces) names.insert(entry.name);
  return names;
}

// Four steps, of two tensors each.
sim::Trace Small() {
  sim::Builder builder("small");
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < 2; ++i) {
      const uint32_t tensor = builder.Create(core::MiB(10));
      builder.Compute(0.001);
      builder.Put(tensor, true);
      builder.Get(tensor);
      builder.Free(tensor);
    }
    builder.Step();
  }
  return builder.Take();
}

TEST(TraceSetTest, TheSetsShareNoNameAndHaveNoTraceOfSeveralClients) {
  const auto validation = ValidationSet("");
  ASSERT_TRUE(validation.ok());
  EXPECT_EQ((*validation).traces.size(), 9u);
  EXPECT_TRUE((*validation).judges_only);
  EXPECT_FALSE(TuningSet().judges_only);
  const std::set<std::string> tuned = NamesOf(TuningSet());
  for (const std::string& name : NamesOf(*validation)) EXPECT_FALSE(tuned.contains(name)) << name;
  for (const TraceSet* set : {&TuningSet(), &*validation}) {
    for (const TraceSet::Entry& entry : set->traces)
      EXPECT_EQ(set->generate(entry.name, AnyHardware()).clients, 1u) << entry.name;
  }
}

TEST(TraceSetTest, RecordingsAreReadFromTheirFolderOrSaidToBeLeftOut) {
  const std::string folder = testing::TempDir();
  EXPECT_EQ(ValidationSet(folder + "nowhere").error().code, core::ErrorCode::kNotFound);
  std::set<std::string> names = {"gpt-large", "resnet50"};
  for (const char* job : {"bert", "gpt2", "lora", "resnet50", "whisper"})
    for (const char* kind : {"-compiled", "-eager"})
      names.insert(std::string("pytorch-") + job + kind);
  std::set<std::string> recorded;
  for (const std::string& name : names) {
    std::ofstream file(folder + "/" + name + ".trace", std::ios::binary);
    sim::Write(Small(), file);
    recorded.insert("recorded-" + name);
  }
  const auto with = ValidationSet(folder);
  ASSERT_TRUE(with.ok()) << with.error().message;
  const auto without = ValidationSet("");
  ASSERT_TRUE(without.ok());
  EXPECT_EQ((*with).without, "");
  EXPECT_EQ((*without).without, "the recordings");
  std::set<std::string> more = NamesOf(*with);
  for (const std::string& name : NamesOf(*without)) more.erase(name);
  EXPECT_EQ(more, recorded);
  EXPECT_EQ((*with).generate("recorded-resnet50", AnyHardware()).Fingerprint(),
            Small().Fingerprint());
}

TEST(TraceSetTest, RecordingsForTuningKeepTheirHintsAndTheirSteps) {
  const std::string folder = testing::TempDir();
  EXPECT_EQ(TuningSet(folder + "nowhere").error().code, core::ErrorCode::kNotFound);
  for (const char* name : {"pytorch-gpt-50", "pytorch-gpt-75"}) {
    std::ofstream file(folder + "/" + name + ".trace", std::ios::binary);
    sim::Write(sim::WithHints(Small(), sim::Hints::kOrder), file);
  }
  const auto with = TuningSet(folder);
  ASSERT_TRUE(with.ok()) << with.error().message;
  EXPECT_EQ((*with).traces.size(), TuningSet().traces.size() + 2);
  const TraceSet::Entry& entry = (*with).traces.back();
  EXPECT_EQ(entry.name, "recorded-pytorch-gpt-75");
  EXPECT_TRUE(entry.hinted);
  const sim::Trace trace = (*with).generate(entry.name, AnyHardware());
  // Fingerprints count steps and calls alike.
  EXPECT_EQ(trace.Fingerprint(), Small().Fingerprint());
  const auto is_ordered = [](const sim::Op& op) {
    return op.kind == sim::OpKind::kPut && op.next_use.kind == core::NextUse::Kind::kOrder;
  };
  EXPECT_TRUE(std::any_of(trace.ops.begin(), trace.ops.end(), is_ordered));
  EXPECT_EQ((*TuningSet("")).without, "the recordings");
}

TEST(TraceSetTest, JobsWithoutARecordingAreLeftOutByName) {
  const std::string folder = testing::TempDir() + "jobs";
  std::filesystem::create_directory(folder);
  for (const char* name : {"job-unet", "job-gan"}) {
    std::ofstream file(folder + "/" + name + ".trace", std::ios::binary);
    sim::Write(Small(), file);
  }
  const auto jobs = JobsSet(folder);
  ASSERT_TRUE(jobs.ok()) << jobs.error().message;
  EXPECT_EQ(NamesOf(*jobs), std::set<std::string>{"recorded-job-unet"});
  EXPECT_TRUE((*jobs).without.starts_with("job-convnext, job-experts, "));
  EXPECT_EQ((*jobs).without.find("unet"), std::string::npos);
  const auto kept = KeptJobsSet(folder);
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  EXPECT_EQ(NamesOf(*kept), std::set<std::string>{"recorded-job-gan"});
  EXPECT_EQ((*kept).without, "job-accumulate, job-lora_two, job-speech");
  EXPECT_EQ((*JobsSet("")).without, "the recordings");
}

TEST(TraceSetTest, JobsKeptBackAreNoOthersAndJudgeOnly) {
  // Without recordings each set names all its jobs.
  const std::string nowhere = testing::TempDir() + "nowhere";
  const auto jobs = JobsSet(nowhere);
  const auto kept = KeptJobsSet(nowhere);
  EXPECT_TRUE((*kept).judges_only);
  EXPECT_FALSE((*jobs).judges_only);
  EXPECT_EQ(std::count((*jobs).without.begin(), (*jobs).without.end(), ','), 8);
  std::istringstream names((*kept).without);
  for (std::string name; std::getline(names >> std::ws, name, ',');)
    EXPECT_EQ((*jobs).without.find(name), std::string::npos) << name;
}

TEST(TraceSetTest, WhatIsCutOffAndTwoWholeIterationsAreForLearning) {
  EXPECT_EQ(LearnedFrom({"generated", true}, Small()), 2u);
  EXPECT_EQ(LearnedFrom({"recorded", true, 1}, Small()), 3u);
}

TEST(TraceSetTest, BudgetsHaveRoomForTheLargestStep) {
  // Alone in use: 10 of 10 MiB, which no budget below the footprint has room for.
  EXPECT_TRUE(ScoreBudgets(Small()).empty());
  const sim::Trace trace = sim::Generate("gpt2-small", AnyHardware(), 1);
  const auto budgets = ScoreBudgets(trace);
  ASSERT_EQ(budgets.size(), 4u);
  EXPECT_EQ(budgets.front().percent, 30);
  EXPECT_EQ(budgets.back().percent, 90);
  EXPECT_EQ(ScoreBudgets(trace, /*hinted=*/true).back().percent, 100);
}

}  // namespace
}  // namespace ravenstore::bench
