#include "elastic/replay.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using Kind = ProgramEvent::Kind;

constexpr Bytes kPage = Machine{}.page;

// `count` pages that are read one after the other in each step, a call of `seconds` for each.
std::vector<ProgramEvent> Weights(uint32_t count, double seconds, int steps) {
  std::vector<ProgramEvent> program;
  for (uint32_t i = 0; i < count; ++i) program.push_back({.kind = Kind::kAllocate, .page = i});
  for (int step = 0; step < steps; ++step) {
    for (uint32_t i = 0; i < count; ++i) {
      program.push_back({.kind = Kind::kCall,
                         .identity = i,
                         .seconds = seconds,
                         .touches = {{.page = i, .reads = kPage}}});
    }
    program.push_back({.kind = Kind::kStep});
  }
  return program;
}

TEST(ReplayTest, PeakAndComputeAreTheProgramsOwn) {
  auto program = Weights(4, 0.5, 2);
  EXPECT_EQ(PeakOf(program), 4u);
  EXPECT_EQ(ComputeOf(program), (std::vector<double>{2.0, 2.0}));
}

TEST(ReplayTest, WhatFitsCostsNothing) {
  const auto program = Weights(4, 0.5, 4);
  for (const Rival rival : {Rival::kLearned, Rival::kOracle, Rival::kInPlace, Rival::kDemandLru}) {
    const Replayed replayed = Replay(program, {.device = kPage * 4}, rival);
    ASSERT_EQ(replayed.steps.size(), 4u);
    EXPECT_NEAR(replayed.steps.back(), 2.0, 1e-9);
    EXPECT_EQ(replayed.in_place, 0);
  }
}

TEST(ReplayTest, InPlaceCostsTheBytesOverTheLink) {
  const auto program = Weights(4, 0.5, 2);
  const Replayed replayed = Replay(program, {.device = kPage * 3}, Rival::kInPlace);
  EXPECT_NEAR(replayed.steps.back(), 2.0 + 32 * 1024 * 1024 / 51e9, 1e-9);
}

TEST(ReplayTest, OnDemandACycleThatDoesNotFitMovesEverything) {
  const auto program = Weights(4, 0.5, 3);
  const Machine machine{.device = kPage * 3};
  const Replayed replayed = Replay(program, machine, Rival::kDemandLru);
  // The way out takes longer than the way in, beside it.
  const double out = 32 * 1024 * 1024 / machine.both_ways + machine.unmap + machine.map_host;
  EXPECT_NEAR(replayed.steps.back(), 2.0 + 4 * out, 1e-9);
}

TEST(ReplayTest, LearnedMovesAreHiddenBehindLongCalls) {
  const auto program = Weights(10, 0.05, 6);
  const Machine machine{.device = kPage * 7};
  const Replayed replayed = Replay(program, machine, Rival::kLearned);
  EXPECT_GT(replayed.steps.front(), 0.5);
  for (size_t step = 3; step < 6; ++step) EXPECT_NEAR(replayed.steps[step], 0.5, 1e-9);
  EXPECT_GT(replayed.moved_in, 0);
}

// Two pages of a call use the link in turn, each for half of its bytes.
TEST(ReplayTest, OnlyWhatACallTouchesOfAPageCountsInPlace) {
  std::vector<ProgramEvent> program;
  for (uint32_t i = 0; i < 2; ++i) program.push_back({.kind = Kind::kAllocate, .page = i});
  const Bytes half(kPage.count() / 2);
  program.push_back(
      {.kind = Kind::kCall,
       .seconds = 1,
       .touches = {{.page = 0, .reads = half, .writes = half}, {.page = 1, .reads = half}}});
  program.push_back({.kind = Kind::kStep});
  const Machine machine{.device = Bytes{}};
  const Replayed replayed = Replay(program, machine, Rival::kInPlace);
  const double first = 2 * (machine.map_host + machine.pin);
  EXPECT_NEAR(replayed.steps.back(), 1 + first + 32 * 1024 * 1024 / 51e9, 1e-9);
  EXPECT_EQ(replayed.in_place, 48.0 * 1024 * 1024);
}

// What is live for good and used only at the ends of a step leaves in time for the peak between.
TEST(ReplayTest, NobodyWaitsAtAPeakThatIsForeseen) {
  auto program = Weights(6, 0.05, 0);
  for (int step = 0; step < 6; ++step) {
    const auto use = [&](uint64_t identity, uint32_t page) {
      program.push_back({.kind = Kind::kCall,
                         .identity = identity,
                         .seconds = 0.05,
                         .touches = {{.page = page, .reads = kPage, .writes = kPage}}});
    };
    for (uint32_t i = 0; i < 6; ++i) use(i, i);
    for (uint32_t i = 6; i < 10; ++i) {
      program.push_back({.kind = Kind::kAllocate, .page = i});
      for (uint64_t again = 0; again < 10; ++again) use(100 * again + i, i);
    }
    for (uint32_t i = 6; i < 10; ++i) program.push_back({.kind = Kind::kFree, .page = i});
    program.push_back({.kind = Kind::kStep});
  }
  const Machine machine{.device = kPage * 7};
  const Replayed replayed = Replay(program, machine, Rival::kLearned);
  for (size_t step = 3; step < 6; ++step)
    EXPECT_NEAR(replayed.steps[step], 46 * 0.05, 4 * machine.map + 1e-9);
}

TEST(ReplayTest, TheOracleKnowsWhatNeverRepeats) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    auto program = Weights(10, 0.02, 20);
    for (ProgramEvent& event : program) {
      if (event.kind == Kind::kCall)
        event.touches[0].page = static_cast<uint32_t>(event.identity = random() % 10);
    }
    const Machine machine{.device = kPage * 5, .pin = 0};
    const auto seconds = [&](Rival rival) {
      const auto steps = Replay(program, machine, rival).steps;
      return std::accumulate(steps.begin(), steps.end(), 0.0);
    };
    EXPECT_LT(seconds(Rival::kOracle), seconds(Rival::kLearned));
    EXPECT_LT(seconds(Rival::kLearned), seconds(Rival::kDemandLru));
  }
}

}  // namespace
}  // namespace ravenstore::elastic
