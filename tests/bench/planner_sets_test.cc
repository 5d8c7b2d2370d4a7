#include "bench/planner_sets.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
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
  for (const char* name : {"gpt-large", "resnet50"}) {
    std::ofstream file(folder + "/" + name + ".trace", std::ios::binary);
    sim::Write(Small(), file);
  }
  const auto with = ValidationSet(folder);
  ASSERT_TRUE(with.ok()) << with.error().message;
  const auto without = ValidationSet("");
  ASSERT_TRUE(without.ok());
  EXPECT_EQ((*with).without, "");
  EXPECT_EQ((*without).without, "the recordings");
  std::set<std::string> more = NamesOf(*with);
  for (const std::string& name : NamesOf(*without)) more.erase(name);
  EXPECT_EQ(more, (std::set<std::string>{"recorded-gpt-large", "recorded-resnet50"}));
  EXPECT_EQ((*with).generate("recorded-resnet50", AnyHardware()).Fingerprint(),
            Small().Fingerprint());
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
}

}  // namespace
}  // namespace ravenstore::bench
