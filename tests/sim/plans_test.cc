// The planner's plans over the tuning traces, each as one number (sim/plan_hash.h): what only
// changes how the planner is written changes none of them.
//
// What is to change them says so, and writes them anew:
//   RAVENSTORE_TEST_WRITE_PLANS=$PWD/tests/sim/plans.txt bazel-bin/tests/sim/plans_test
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "sim/generators.h"
#include "sim/hash.h"
#include "sim/score.h"
#include "sim/simulator.h"

namespace ravenstore::sim {
namespace {

constexpr const char* kFile = "tests/sim/plans.txt";
constexpr const char* kWords =
    "# Of each trace and budget and way of hinting what is replayed, and what the planner did.\n"
    "# Written by tests/sim/plans_test.cc.\n";
constexpr int kIterations = 4;
constexpr std::pair<const char*, Hints> kHinted[] = {
    {"time", Hints::kTime}, {"order", Hints::kOrder}, {"none", Hints::kNone}};

struct Known {
  uint64_t replayed;
  uint64_t plans;
};
using Plans = std::map<std::string, Known>;  // by "trace percent hints"

// All that decides what the planner is told, times included: these come from the C library.
uint64_t HashOf(const Trace& trace) {
  Hash hash;
  hash.Add(trace.Fingerprint());
  for (const Op& op : trace.ops) hash.Add(static_cast<uint64_t>(op.time.count()));
  return hash.value();
}

Plans PlansOf(const std::string& name) {
  Plans plans;
  const Hardware& hardware = kHardware[0];
  const Trace plain = Generate(name, hardware, kIterations);
  for (const Budget& budget : FeasibleBudgets(plain)) {
    for (const auto& [words, hints] : kHinted) {
      const Trace trace = WithHints(plain, hints);
      const Outcome outcome = Simulate(trace, *SetupFor("value", hardware, budget.bytes));
      EXPECT_EQ(outcome.failure, "") << name;
      plans[name + " " + std::to_string(budget.percent) + " " + words] = {HashOf(trace),
                                                                          outcome.plans_hash};
    }
  }
  return plans;
}

Plans Read() {
  Plans plans;
  std::ifstream file(kFile);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string trace, percent, hints;
    Known known{};
    words >> trace >> percent >> hints >> std::hex >> known.replayed >> known.plans;
    EXPECT_TRUE(words) << line;
    plans[trace + " " + percent + " " + hints] = known;
  }
  return plans;
}

void Write(const std::string& path) {
  std::ofstream file(path);
  file << kWords;
  for (const std::string& name : GeneratorNames()) {
    for (const auto& [key, known] : PlansOf(name))
      file << key << std::hex << ' ' << known.replayed << ' ' << known.plans << '\n';
  }
  file.close();
  ASSERT_TRUE(file) << path;
}

class PlansTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Tuning, PlansTest, testing::ValuesIn(GeneratorNames()),
                         [](const auto& name) {
                           std::string words = name.param;
                           std::replace(words.begin(), words.end(), '-', '_');
                           return words;
                         });

TEST_P(PlansTest, AreWhatTheyWere) {
  if (std::getenv("RAVENSTORE_TEST_WRITE_PLANS") != nullptr) GTEST_SKIP() << "they are written";
  const Plans known = Read();
  for (const auto& [key, now] : PlansOf(GetParam())) {
    const auto before = known.find(key);
    ASSERT_NE(before, known.end()) << key << " is not in " << kFile;
    if (before->second.replayed != now.replayed)
      GTEST_SKIP() << "this C library's functions give " << key << " other times";
    EXPECT_EQ(before->second.plans, now.plans) << key;
  }
}

TEST(PlansFileTest, IsWrittenWhereThatIsAsked) {
  const char* path = std::getenv("RAVENSTORE_TEST_WRITE_PLANS");
  if (path != nullptr) return Write(path);
  size_t cases = 0;
  for (const auto& [key, known] : Read()) cases += key.empty() ? 0 : 1;
  EXPECT_GE(cases, GeneratorNames().size() * 3);
}

}  // namespace
}  // namespace ravenstore::sim
