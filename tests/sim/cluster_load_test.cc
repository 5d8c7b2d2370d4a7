#include "sim/cluster_load.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

namespace ravenstore::sim {
namespace {

// Small enough for a test, and tight enough that memory is wanted back.
ClusterLoad Small(uint64_t seed) {
  ClusterLoad load;
  load.seed = seed;
  load.nodes = 20;
  load.time = std::chrono::minutes(4);
  load.day = load.time;
  return load;
}

TEST(ClusterLoadTest, IdleMemoryIsOfUseAndIsGivenBackInTime) {
  const ClusterUse use = SimulateLoad(Small(1));
  EXPECT_EQ(use.violations.Violations(), 0u) << use.violations.first;
  std::printf("occupancy %.3f, %llu of %llu missed, %.2f messages, %.0f + %.0f bytes\n",
              use.UsefulOccupancy(), static_cast<unsigned long long>(use.missed),
              static_cast<unsigned long long>(use.recalled), use.messages, use.record_bytes,
              use.checksum_bytes);
  EXPECT_GT(use.wanted, static_cast<double>(core::GiB(20).count()));
  EXPECT_GE(use.UsefulOccupancy(), 0.5);
  EXPECT_LE(use.useful, use.possible);
  EXPECT_LE(use.possible, use.wanted);
  EXPECT_LE(use.possible, use.lendable);
  EXPECT_LE(use.messages, 20);
  EXPECT_GT(use.messages, 1);
  // The checksums of a tensor's granules, 8 bytes each, and a little for what is not whole.
  const double granules = use.tensor_bytes / static_cast<double>(core::KiB(256).count());
  EXPECT_GE(use.checksum_bytes, granules * 8);
  EXPECT_GT(use.record_bytes, 0);
  EXPECT_GT(use.jobs.used, 1000u);
}

TEST(ClusterLoadTest, WhatOwnersWantBackMovesOnInTime) {
  ClusterLoad load = Small(2);
  load.owners = 4;
  load.jobs = 3;
  const ClusterUse use = SimulateLoad(load);
  EXPECT_EQ(use.violations.Violations(), 0u) << use.violations.first;
  EXPECT_GT(use.recalled, 20u);
  EXPECT_GT(use.moved, 10u);
  EXPECT_LT(use.MissedPercent(), 10);
}

TEST(ClusterLoadTest, ARunFollowsFromItsSeed) {
  const auto run = [](uint64_t seed) {
    ClusterLoad load = Small(seed);
    load.nodes = 5;
    load.time = std::chrono::minutes(2);
    return SimulateLoad(load);
  };
  const ClusterUse first = run(3);
  const ClusterUse second = run(3);
  EXPECT_EQ(first.useful, second.useful);
  EXPECT_EQ(first.events, second.events);
  EXPECT_EQ(first.jobs.used, second.jobs.used);
  EXPECT_EQ(first.messages, second.messages);
  EXPECT_NE(first.events, run(4).events);
}

}  // namespace
}  // namespace ravenstore::sim
