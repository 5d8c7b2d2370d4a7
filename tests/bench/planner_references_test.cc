#include "bench/planner_references.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <vector>

#include "bench/planner_sets.h"
#include "sim/score.h"

namespace ravenstore::bench {
namespace {

using std::chrono::microseconds;

std::string File(const std::string& text) {
  const std::string path = testing::TempDir() + "references.txt";
  std::ofstream(path) << text;
  return path;
}

TEST(ReferencesTest, WhatIsWrittenIsRead) {
  References references;
  references.Add({"unet", "h200", 50, 3}, {0xfeedfacecafebeef, microseconds(7), microseconds(5)});
  const std::string path = testing::TempDir() + "written.txt";
  ASSERT_TRUE(references.Write(path).ok());
  const auto read = References::Read(path);
  ASSERT_TRUE(read.ok());
  std::string why;
  const auto known = (*read).Find({"unet", "h200", 50, 3}, 0xfeedfacecafebeef, &why);
  ASSERT_TRUE(known.has_value()) << why;
  EXPECT_EQ(known->compute, microseconds(7));
  EXPECT_EQ(known->stall, microseconds(5));
}

TEST(ReferencesTest, OfAnotherTraceOrCaseNothingIsKnown) {
  References references;
  references.Add({"unet", "h200", 50, 0}, {1, microseconds(7), microseconds(5)});
  std::string why;
  EXPECT_FALSE(references.Find({"unet", "h200", 50, 0}, 2, &why));
  EXPECT_EQ(why, "unet at 50% on h200 is another trace than its reference's");
  EXPECT_FALSE(references.Find({"unet", "h200", 70, 0}, 1, &why));
  EXPECT_EQ(why, "unet at 70% on h200 has no reference");
}

TEST(ReferencesTest, WhatIsNoReferenceIsNamedWithItsLine) {
  EXPECT_EQ(References::Read("/nowhere/at/all").error().code, core::ErrorCode::kNotFound);
  for (const char* wrong :
       {"unet h200 50 0 1 7", "unet h200 fifty 0 1 7 5", "unet h200 50 0 1 7 -5"}) {
    const auto read = References::Read(File(std::string("# a comment\n\n") + wrong + "\n"));
    ASSERT_FALSE(read.ok()) << wrong;
    EXPECT_NE(read.error().message.find("line 3"), std::string::npos) << read.error().message;
  }
}

// Those in the tree are those of the traces that are generated, or read.
void ExpectAllOf(const TraceSet& set) {
  const auto references = References::Read("bench/planner_references.txt");
  ASSERT_TRUE(references.ok()) << references.error().message;
  for (const char* machine : kScoreMachines) {
    const sim::Hardware& hardware = *sim::FindHardware(machine);
    for (const TraceSet::Entry& entry : set.traces) {
      const sim::Trace trace = set.generate(entry.name, hardware);
      std::vector<size_t> beginnings = {0};
      if (entry.periodic) beginnings.push_back(LearnedFrom(entry, trace));
      for (const ScoreBudget& budget : ScoreBudgets(trace, entry.hinted)) {
        for (const size_t from : beginnings) {
          std::string why;
          const auto known = references->Find({entry.name, machine, budget.percent, from},
                                              trace.Fingerprint(), &why);
          ASSERT_TRUE(known.has_value()) << why;
          // The file has whole microseconds.
          const core::Duration compute = sim::ComputeFrom(trace, from);
          EXPECT_LE(std::abs(core::Seconds(known->compute - compute)),
                    1e-6 + 1e-5 * core::Seconds(compute))
              << entry.name;
        }
      }
    }
  }
}

// "recorded" is where this test's Bazel rule unpacks what is in the tree.
TEST(ReferencesTest, EveryCaseOfTheTuningSetHasItsOwn) {
  const auto set = TuningSet("tests/bench/recorded");
  ASSERT_TRUE(set.ok()) << set.error().message;
  ExpectAllOf(*set);
}

TEST(ReferencesTest, EveryCaseOfTheValidationSetHasItsOwn) {
  const auto set = ValidationSet("tests/bench/recorded");
  ASSERT_TRUE(set.ok()) << set.error().message;
  ExpectAllOf(*set);
}

}  // namespace
}  // namespace ravenstore::bench
