#include "sim/cluster_world.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "tests/ipc/fuzz.h"

namespace ravenstore::sim {
namespace {

TEST(ClusterWorldTest, NothingIsWrongLateOrLentTwiceInAnyRun) {
  const uint64_t seed = ipc::FromEnvironment("RAVENSTORE_FUZZ_SEED", 20261126);
  const uint64_t most = ipc::FromEnvironment("RAVENSTORE_FUZZ_RUNS", 500);
  // At most so long, where that is said.
  const uint64_t seconds = ipc::FromEnvironment("RAVENSTORE_FUZZ_SECONDS", 0);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  ClusterCounts all;
  uint64_t runs = 0;
  for (; runs < most; ++runs) {
    if (seconds != 0 && std::chrono::steady_clock::now() >= deadline) break;
    const ClusterCounts counts = RunCluster({.seed = seed + runs});
    ASSERT_EQ(counts.Violations(), 0u)
        << "RAVENSTORE_FUZZ_SEED=" << seed + runs << " RAVENSTORE_FUZZ_RUNS=1: " << counts.first;
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

// Found by ten thousand runs: a store that was restored to just what a node had seen of it, but not
// to what that node had written.
TEST(ClusterWorldTest, WhatOnceWentWrongDoesNotAgain) {
  const ClusterCounts counts = RunCluster({.seed = 1009904});
  EXPECT_EQ(counts.Violations(), 0u) << counts.first;
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
