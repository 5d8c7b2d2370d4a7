#include "core/iteration_profile.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::core {
namespace {

using std::chrono::milliseconds;

// A program that repeats itself: accesses with these pauses after them.
class Program {
 public:
  void Iteration(const std::vector<int>& pauses) {
    profile.BeginIteration();
    for (const int pause : pauses) {
      profile.Access(now_);
      now_ += milliseconds(pause);
    }
  }
  // The first accesses of an iteration; then the last of them is now.
  void Begin(const std::vector<int>& pauses) {
    if (pauses.front() == 0) profile.BeginIteration();
    for (const int pause : pauses) {
      now_ += milliseconds(pause);
      profile.Access(now_);
    }
  }

  IterationProfile profile;

 private:
  Tick now_{};
};

TEST(IterationProfileTest, KnowsNothingUntilTwoIterationsWereAlike) {
  Program program;
  program.Iteration({1, 2, 3});
  program.Begin({0});
  EXPECT_FALSE(program.profile.Until(1).has_value());
}

TEST(IterationProfileTest, ExpectsEachAccessWhenItCameLastTime) {
  Program program;
  for (int i = 0; i < 2; ++i) program.Iteration({1, 1, 8});
  program.Begin({0, 1});
  EXPECT_EQ(program.profile.Until(1), milliseconds(1));
  EXPECT_EQ(program.profile.Until(2), milliseconds(9)) << "into the next iteration";
  EXPECT_EQ(program.profile.Until(3), milliseconds(10));
  EXPECT_EQ(program.profile.Until(300), milliseconds(1000));
}

TEST(IterationProfileTest, AnIterationOfAnotherLengthIsNoneToGoBy) {
  Program program;
  for (int i = 0; i < 2; ++i) program.Iteration({1, 1, 8});
  program.Iteration({10, 10, 80});
  program.Begin({0});
  EXPECT_FALSE(program.profile.Until(1).has_value());
  program.Begin({10, 10});
  program.profile.BeginIteration();
  program.Begin({80});
  EXPECT_EQ(program.profile.Until(2), milliseconds(20)) << "until it comes again";
}

TEST(IterationProfileTest, NorIsOneOfOtherAccesses) {
  Program program;
  for (int i = 0; i < 2; ++i) program.Iteration({1, 1, 8});
  program.Iteration({1, 1, 4, 4});
  program.Begin({0});
  EXPECT_FALSE(program.profile.Until(1).has_value());
}

TEST(IterationProfileTest, BetweenAStepAndTheNextAccessItSaysNothing) {
  Program program;
  for (int i = 0; i < 3; ++i) program.Iteration({1, 1, 8});
  program.profile.BeginIteration();
  EXPECT_FALSE(program.profile.Until(1).has_value());
}

TEST(IterationProfileTest, TheFirstIterationCountsHoweverLongItIs) {
  for (const size_t accesses : {10, 30'000}) {
    Program program;
    program.Begin(std::vector<int>(accesses, 1));  // nobody has told of an iteration yet
    program.Iteration(std::vector<int>(accesses, 1));
    program.Begin({0});
    ASSERT_TRUE(program.profile.Until(2).has_value());
    EXPECT_EQ(program.profile.Until(2), milliseconds(2));
  }
}

TEST(IterationProfileTest, WhoHasNoIterationsIsNotListenedTo) {
  IterationProfile profile;
  for (int i = 0; i < 2000; ++i) profile.Access(Tick(milliseconds(i)));
  EXPECT_FALSE(profile.Until(1).has_value());
}

TEST(IterationProfileTest, AnEndlessIterationTakesBoundedMemoryAndIsNotToldFrom) {
  Program program;
  for (int i = 0; i < 3; ++i) program.Iteration(std::vector<int>(70'000, 0));
  program.Begin({0});
  EXPECT_FALSE(program.profile.Until(1).has_value());
}

}  // namespace
}  // namespace ravenstore::core
