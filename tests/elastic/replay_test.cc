#include "elastic/replay.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::MiB;
using Kind = ProgramEvent::Kind;

// `count` weights of 64 MiB that are read one after the other in each step, a call of `seconds`
// for each.
std::vector<ProgramEvent> Weights(uint32_t count, double seconds, int steps) {
  std::vector<ProgramEvent> program;
  for (uint32_t i = 0; i < count; ++i)
    program.push_back({.kind = Kind::kAllocate, .object = i, .bytes = MiB(64)});
  for (int step = 0; step < steps; ++step) {
    for (uint32_t i = 0; i < count; ++i) {
      program.push_back({.kind = Kind::kCall,
                         .identity = i,
                         .seconds = seconds,
                         .touches = {{.object = i, .reads = true, .writes = false}}});
    }
    program.push_back({.kind = Kind::kStep});
  }
  return program;
}

TEST(ReplayTest, PeakAndComputeAreTheProgramsOwn) {
  auto program = Weights(4, 0.5, 2);
  EXPECT_EQ(PeakOf(program), MiB(256));
  EXPECT_EQ(ComputeOf(program), (std::vector<double>{2.0, 2.0}));
}

TEST(ReplayTest, WhatFitsCostsNothing) {
  const auto program = Weights(4, 0.5, 4);
  for (const Rival rival : {Rival::kLearned, Rival::kOracle, Rival::kInPlace, Rival::kDemandLru}) {
    const Replayed replayed = Replay(program, {.device = MiB(256)}, rival);
    ASSERT_EQ(replayed.steps.size(), 4u);
    EXPECT_NEAR(replayed.steps.back(), 2.0, 1e-9);
    EXPECT_EQ(replayed.in_place, 0);
  }
}

TEST(ReplayTest, InPlaceCostsTheBytesOverTheLink) {
  const auto program = Weights(4, 0.5, 2);
  const Machine machine{.device = MiB(192)};
  const Replayed replayed = Replay(program, machine, Rival::kInPlace);
  EXPECT_NEAR(replayed.steps.back(), 2.0 + 64 * 1024 * 1024 / machine.bytes_per_second, 1e-9);
}

TEST(ReplayTest, OnDemandACycleThatDoesNotFitMovesEverything) {
  const auto program = Weights(4, 0.5, 3);
  const Machine machine{.device = MiB(192)};
  const Replayed replayed = Replay(program, machine, Rival::kDemandLru);
  const double part = machine.remap_seconds + 32 * 1024 * 1024 / machine.bytes_per_second;
  EXPECT_NEAR(replayed.steps.back(), 2.0 + 8 * part, 1e-9);
}

TEST(ReplayTest, LearnedMovesAreHiddenBehindLongCalls) {
  const auto program = Weights(10, 0.05, 6);
  const Machine machine{.device = MiB(64) * 7};
  const Replayed replayed = Replay(program, machine, Rival::kLearned);
  EXPECT_GT(replayed.steps.front(), 0.5);
  for (size_t step = 3; step < 6; ++step) EXPECT_NEAR(replayed.steps[step], 0.5, 1e-9);
  EXPECT_GT(replayed.moved_in, 0);
}

TEST(ReplayTest, TheOracleKnowsWhatNeverRepeats) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    auto program = Weights(10, 0.02, 20);
    for (ProgramEvent& event : program) {
      if (event.kind == Kind::kCall)
        event.touches[0].object = static_cast<uint32_t>(event.identity = random() % 10);
    }
    const Machine machine{.device = MiB(64) * 5};
    const auto seconds = [&](Rival rival) {
      const auto steps = Replay(program, machine, rival).steps;
      return std::accumulate(steps.begin(), steps.end(), 0.0);
    };
    EXPECT_LT(seconds(Rival::kOracle), seconds(Rival::kLearned));
    // There is nothing to be learned.
    EXPECT_LT(seconds(Rival::kLearned), seconds(Rival::kDemandLru) * 1.02);
  }
}

}  // namespace
}  // namespace ravenstore::elastic
