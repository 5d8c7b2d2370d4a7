#include "core/rhythm.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::core {
namespace {

using std::chrono::milliseconds;

// A program that repeats itself: accesses with these pauses after them.
class Program {
 public:
  void Iteration(const std::vector<int>& pauses) {
    rhythm.BeginIteration();
    for (const int pause : pauses) {
      rhythm.Access(now_);
      now_ += milliseconds(pause);
    }
  }
  // The first accesses of an iteration; then the last of them is now.
  void Begin(const std::vector<int>& pauses) {
    if (pauses.front() == 0) rhythm.BeginIteration();
    for (const int pause : pauses) {
      now_ += milliseconds(pause);
      rhythm.Access(now_);
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

TEST(RhythmTest, TheFirstIterationCountsHoweverLongItIs) {
  for (const size_t accesses : {10, 30'000}) {
    Program program;
    program.Begin(std::vector<int>(accesses, 1));  // nobody has told of an iteration yet
    program.Iteration(std::vector<int>(accesses, 1));
    program.Begin({0});
    ASSERT_TRUE(program.rhythm.SecondsUntil(2).has_value());
    EXPECT_NEAR(*program.rhythm.SecondsUntil(2), 0.002, 1e-5);
  }
}

TEST(RhythmTest, WhoHasNoIterationsIsNotListenedTo) {
  Rhythm rhythm;
  for (int i = 0; i < 2000; ++i) rhythm.Access(Tick(milliseconds(i)));
  EXPECT_FALSE(rhythm.SecondsUntil(1).has_value());
}

TEST(RhythmTest, AnEndlessIterationTakesBoundedMemoryAndIsNotToldFrom) {
  Program program;
  for (int i = 0; i < 3; ++i) program.Iteration(std::vector<int>(70'000, 0));
  program.Begin({0});
  EXPECT_FALSE(program.rhythm.SecondsUntil(1).has_value());
}

}  // namespace
}  // namespace ravenstore::core
