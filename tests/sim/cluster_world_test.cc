#include "sim/cluster_world.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/ipc/fuzz.h"

namespace ravenstore::sim {
namespace {

// The fewest runs that say something of all of them.
constexpr uint64_t kMeaningfulRuns = 100;

std::string Again(uint64_t seed) {
  return "deploy/bazel test //tests/sim:cluster_world_test --test_env=RAVENSTORE_FUZZ_RUNS=1"
         " --test_env=RAVENSTORE_FUZZ_SEED=" +
         std::to_string(seed);
}

// From other seeds each time; RAVENSTORE_FUZZ_SEED is the first. With RAVENSTORE_FUZZ_SECONDS it
// goes on for so long, not for RAVENSTORE_FUZZ_RUNS.
TEST(ClusterWorldTest, NothingIsWrongLateOrLentTwiceInAnyRun) {
  const uint64_t seed = ipc::FreshSeed();
  const uint64_t seconds = ipc::FromEnvironment("RAVENSTORE_FUZZ_SECONDS", 0);
  const uint64_t most =
      seconds != 0 ? UINT64_MAX : ipc::FromEnvironment("RAVENSTORE_FUZZ_RUNS", kMeaningfulRuns);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  std::printf("the first again: %s\nseeds:", Again(seed).c_str());
  ClusterCounts all;
  uint64_t runs = 0;
  for (; runs < most; ++runs) {
    if (seconds != 0 && std::chrono::steady_clock::now() >= deadline) break;
    // Before it: a run may end the process.
    std::printf(" %s", std::to_string(seed + runs).c_str());
    std::fflush(stdout);
    const ClusterCounts counts = RunCluster({.seed = seed + runs});
    ASSERT_EQ(counts.Violations(), 0u) << counts.first << "; again: " << Again(seed + runs);
    all += counts;
  }
  std::printf("\n%llu operations, %llu pieces lost, %llu moved\n",
              static_cast<unsigned long long>(all.operations),
              static_cast<unsigned long long>(all.pieces_lost),
              static_cast<unsigned long long>(all.pieces_moved));
  // The faults were there, and the cluster was of use all the same.
  if (runs < kMeaningfulRuns) return;
  EXPECT_GT(all.operations, 100 * runs);
  EXPECT_GT(all.pieces_lost, runs);
  EXPECT_GT(all.pieces_moved, runs);
}

// Also not from what ran before it in its process.
TEST(ClusterWorldTest, ARunFollowsFromItsSeed) {
  std::vector<ClusterCounts> first;
  for (uint64_t seed = 1; seed <= 10; ++seed) first.push_back(RunCluster({.seed = seed}));
  for (uint64_t seed = 10; seed >= 1; --seed) {
    const ClusterCounts again = RunCluster({.seed = seed});
    EXPECT_EQ(again.operations, first[seed - 1].operations) << "seed " << seed;
    EXPECT_EQ(again.bytes_read, first[seed - 1].bytes_read) << "seed " << seed;
  }
  EXPECT_NE(first[7].bytes_read, first[8].bytes_read);
}

}  // namespace
}  // namespace ravenstore::sim
