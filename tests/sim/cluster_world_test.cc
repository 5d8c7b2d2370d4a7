#include "sim/cluster_world.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/ipc/fuzz.h"

namespace ravenstore::sim {
namespace {

TEST(ClusterWorldTest, NothingIsWrongLateOrLentTwiceInAnyRun) {
  const uint64_t seed = ipc::FromEnvironment("RAVENSTORE_FUZZ_SEED", 20261126);
  const uint64_t runs = ipc::FromEnvironment("RAVENSTORE_FUZZ_RUNS", 500);
  ClusterCounts all;
  for (uint64_t i = 0; i < runs; ++i) {
    const ClusterCounts counts = RunCluster({.seed = seed + i});
    ASSERT_EQ(counts.Violations(), 0u)
        << "RAVENSTORE_FUZZ_SEED=" << seed + i << " RAVENSTORE_FUZZ_RUNS=1: " << counts.first;
    all += counts;
  }
  std::printf("seeds from %llu: %llu operations, %llu pieces lost, %llu moved\n",
              static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(all.operations),
              static_cast<unsigned long long>(all.pieces_lost),
              static_cast<unsigned long long>(all.pieces_moved));
  // The faults were there, and the cluster was of use all the same.
  EXPECT_GT(all.operations, 100 * runs);
  EXPECT_GT(all.pieces_lost, runs);
  EXPECT_GT(all.pieces_moved, runs);
}

TEST(ClusterWorldTest, ARunFollowsFromItsSeed) {
  const ClusterCounts first = RunCluster({.seed = 7});
  const ClusterCounts second = RunCluster({.seed = 7});
  EXPECT_EQ(first.operations, second.operations);
  EXPECT_EQ(first.bytes_read, second.bytes_read);
  EXPECT_NE(first.bytes_read, RunCluster({.seed = 8}).bytes_read);
}

}  // namespace
}  // namespace ravenstore::sim
