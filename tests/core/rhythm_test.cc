#include "core/rhythm.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::core {
namespace {

using std::chrono::milliseconds;

// A program that repeats itself: accesses with these pauses after them, a MiB alive for each that
// is still to come.
class Program {
 public:
  void Iteration(const std::vector<int>& pauses) {
    rhythm.BeginIteration();
    Bytes live = MiB(pauses.size());
    for (const int pause : pauses) {
      rhythm.Access(now_, live);
      live -= MiB(1);
      now_ += milliseconds(pause);
    }
  }
  // The first accesses of an iteration; then the last of them is now.
  void Begin(const std::vector<int>& pauses) {
    if (pauses.front() == 0) rhythm.BeginIteration();
    for (const int pause : pauses) {
      now_ += milliseconds(pause);
      rhythm.Access(now_, Bytes{0});
    }
  }

  Rhythm rhythm;

 private:
  Tick now_{};
};

TEST(RhythmTest, KnowsNothingUntilTwoIterationsWereAlike) {
  Program program;
  program.Iteration({1, 2, 3});
  program.Begin({0});
  EXPECT_FALSE(program.rhythm.SecondsUntil(1).has_value());
}

TEST(RhythmTest, ExpectsEachAccessWhenItCameLastTime) {
  Program program;
  for (int i = 0; i < 2; ++i) program.Iteration({1, 1, 8});
  program.Begin({0, 1});
  EXPECT_NEAR(*program.rhythm.SecondsUntil(1), 0.001, 1e-6);
  EXPECT_NEAR(*program.rhythm.SecondsUntil(2), 0.009, 1e-6) << "into the next iteration";
  EXPECT_NEAR(*program.rhythm.SecondsUntil(3), 0.010, 1e-6);
  EXPECT_NEAR(*program.rhythm.SecondsUntil(300), 1.0, 1e-5);
}

TEST(RhythmTest, AnIterationOfAnotherLengthIsNoneToGoBy) {
  Program program;
  for (int i = 0; i < 2; ++i) program.Iteration({1, 1, 8});
  program.Iteration({10, 10, 80});
  program.Begin({0});
  EXPECT_FALSE(program.rhythm.SecondsUntil(1).has_value());
  program.Begin({10, 10});
  program.rhythm.BeginIteration();
  program.Begin({80});
  EXPECT_NEAR(*program.rhythm.SecondsUntil(2), 0.020, 1e-6) << "until it comes again";
}

TEST(RhythmTest, NorIsOneOfOtherAccesses) {
  Program program;
  for (int i = 0; i < 2; ++i) program.Iteration({1, 1, 8});
  program.Iteration({1, 1, 4, 4});
  program.Begin({0});
  EXPECT_FALSE(program.rhythm.SecondsUntil(1).has_value());
}

TEST(RhythmTest, BetweenAStepAndTheNextAccessItSaysNothing) {
  Program program;
  for (int i = 0; i < 3; ++i) program.Iteration({1, 1, 8});
  program.rhythm.BeginIteration();
  EXPECT_FALSE(program.rhythm.SecondsUntil(1).has_value());
}

TEST(RhythmTest, WhoHasNoIterationsIsNotListenedTo) {
  Rhythm rhythm;
  for (int i = 0; i < 100; ++i) rhythm.Access(Tick(milliseconds(i)), MiB(1));
  EXPECT_FALSE(rhythm.SecondsUntil(1).has_value());
}

TEST(RhythmTest, AnEndlessIterationTakesBoundedMemoryAndIsNotToldFrom) {
  Program program;
  for (int i = 0; i < 3; ++i) program.Iteration(std::vector<int>(70'000, 0));
  program.Begin({0});
  EXPECT_FALSE(program.rhythm.SecondsUntil(1).has_value());
}

TEST(RhythmTest, AfterOneIterationItKnowsWhenHowMuchIsAlive) {
  Program program;
  program.Iteration({1, 2, 3, 4});  // 4, 3, 2, and 1 MiB, at 0, 1, 3 and 6 ms; the next at 10
  EXPECT_FALSE(program.rhythm.UntilLive(MiB(4)).has_value());
  program.Begin({0, 1});
  const auto two = program.rhythm.UntilLive(MiB(2));
  ASSERT_TRUE(two.has_value());
  EXPECT_NEAR(two->seconds, 0.002, 1e-6);
  EXPECT_EQ(two->most, MiB(2));
  EXPECT_NEAR(program.rhythm.UntilLive(MiB(1))->seconds, 0.005, 1e-6);
  EXPECT_FALSE(program.rhythm.UntilLive(KiB(1)).has_value()) << "it never was so little";
}

TEST(RhythmTest, WhatIsAliveComesAgainInTheNextIteration) {
  Program program;
  program.Iteration({1, 2, 3, 4});
  program.Begin({0, 1, 2, 3});
  const auto three = program.rhythm.UntilLive(MiB(3));
  ASSERT_TRUE(three.has_value());
  EXPECT_NEAR(three->seconds, 0.005, 1e-6);
  EXPECT_EQ(three->most, MiB(4)) << "which the next one begins with";
}

TEST(RhythmTest, OfWhatComesBeforeTheFirstStepLittleIsRemembered) {
  for (const int accesses : {500, 600}) {
    Rhythm rhythm;
    Tick now{};
    const auto access = [&](Bytes live) { rhythm.Access(now += milliseconds(1), live); };
    for (int i = 0; i < accesses; ++i) access(MiB(1));
    rhythm.BeginIteration();
    access(MiB(2));
    EXPECT_EQ(rhythm.UntilLive(MiB(1)).has_value(), accesses == 500);
    rhythm.BeginIteration();
    access(MiB(3));
    EXPECT_TRUE(rhythm.UntilLive(MiB(2)).has_value());
  }
}

}  // namespace
}  // namespace ravenstore::core
