// The simulation of faults finds bugs: each of ten is planted in the protocol, and found.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "cluster/planted.h"
#include "sim/cluster_world.h"

namespace ravenstore::sim {
namespace {

using cluster::Planted;

constexpr uint64_t kSeedsMax = 1000;

struct Bug {
  Planted bug;
  const char* name;
};

class ClusterPlantedTest : public testing::TestWithParam<Bug> {
 protected:
  void TearDown() override { cluster::planted = Planted::kNone; }
};

TEST_P(ClusterPlantedTest, IsFoundInAThousandSeeds) {
  cluster::planted = GetParam().bug;
  uint64_t seed = 1;
  ClusterCounts counts;
  for (; seed <= kSeedsMax && counts.Violations() == 0; ++seed) {
    counts = RunCluster({.seed = seed});
  }
  ASSERT_GT(counts.Violations(), 0u) << "not found in seeds 1 to " << kSeedsMax;
  std::printf("%s: seed %llu: %s\n", GetParam().name, static_cast<unsigned long long>(seed - 1),
              counts.first.c_str());
  // And it was the bug that was found.
  cluster::planted = Planted::kNone;
  EXPECT_EQ(RunCluster({.seed = seed - 1}).Violations(), 0u);
}

constexpr Bug kBugs[] = {
    {Planted::kNoGenerationCheck, "NoGenerationCheck"},
    {Planted::kLeaseFromAnswer, "LeaseFromAnswer"},
    {Planted::kReusedUnderTransfer, "ReusedUnderTransfer"},
    {Planted::kCommitBeforeAnswer, "CommitBeforeAnswer"},
    {Planted::kWholeLease, "WholeLease"},
    {Planted::kOldConnectionServed, "OldConnectionServed"},
    {Planted::kNotCleared, "NotCleared"},
    {Planted::kSumsNotCompared, "SumsNotCompared"},
    {Planted::kLendsDuringRecall, "LendsDuringRecall"},
    {Planted::kExpiredServed, "ExpiredServed"},
};
static_assert(std::size(kBugs) == static_cast<size_t>(cluster::kPlantedLast));

INSTANTIATE_TEST_SUITE_P(Bugs, ClusterPlantedTest, testing::ValuesIn(kBugs),
                         [](const auto& bug) { return std::string(bug.param.name); });

}  // namespace
}  // namespace ravenstore::sim
