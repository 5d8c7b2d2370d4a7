#include "tests/core/shrink.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/check.h"
#include "tests/core/exit_outcome.h"

namespace ravenstore::core {
namespace {

using Numbers = std::vector<int>;

// Halves towards zero, as an operand is made plainer.
Numbers Smaller(const int& number) {
  if (number == 0) return {};
  return {0, number / 2};
}

Numbers UpTo(int count) {
  Numbers numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

size_t PlaceOf(const Numbers& numbers, int number) {
  return static_cast<size_t>(std::find(numbers.begin(), numbers.end(), number) - numbers.begin());
}

TEST(ShrinkTest, FindsThePlantedFewAmongMany) {
  // Fails as long as 700 comes before 901 and 13 is somewhere.
  const auto fails = [](const Numbers& numbers) {
    const size_t first = PlaceOf(numbers, 700);
    const size_t second = PlaceOf(numbers, 901);
    return first < second && second < numbers.size() && PlaceOf(numbers, 13) < numbers.size();
  };
  Shrinker<int> shrinker({fails, [](const int&) { return Numbers{}; }}, UpTo(1000));
  EXPECT_EQ(shrinker.Run(), (Numbers{13, 700, 901}));
  EXPECT_LT(shrinker.replays(), 200u);
}

TEST(ShrinkTest, MakesWhatIsLeftPlainer) {
  const auto fails = [](const Numbers& numbers) {
    return std::count_if(numbers.begin(), numbers.end(), [](int n) { return n >= 5; }) >= 2;
  };
  Shrinker<int> shrinker({fails, Smaller}, UpTo(300));
  const Numbers left = shrinker.Run();
  ASSERT_EQ(left.size(), 2u);
  // None can be halved again.
  for (const int number : left) {
    EXPECT_GE(number, 5);
    EXPECT_LT(number, 10);
  }
}

TEST(ShrinkTest, WhatAPlainerItemMakesNeedlessGoesToo) {
  // An 8 needs a 3 beside it; a 4, to which it can be halved, needs nothing.
  const auto fails = [](const Numbers& numbers) {
    const bool three = PlaceOf(numbers, 3) < numbers.size();
    return PlaceOf(numbers, 4) < numbers.size() || (three && PlaceOf(numbers, 8) < numbers.size());
  };
  Shrinker<int> shrinker({fails, Smaller}, Numbers{3, 8});
  EXPECT_EQ(shrinker.Run(), Numbers{4});
}

TEST(ShrinkTest, NeverAsksMoreOftenThanItMay) {
  std::mt19937 random(20261121);
  for (const size_t most : {size_t{0}, size_t{1}, size_t{7}, size_t{50}}) {
    size_t asked = 0;
    const auto fails = [&](const Numbers& numbers) {
      ++asked;
      return PlaceOf(numbers, 3) < numbers.size() && random() % 3 != 0;
    };
    Shrinker<int> shrinker({fails, Smaller, most}, UpTo(100));
    const Numbers left = shrinker.Run();
    EXPECT_LE(asked, most);
    EXPECT_LT(PlaceOf(left, 3), left.size());
  }
}

TEST(ShrinkTest, KeepsAFailureThatNeedsNothing) {
  Shrinker<int> shrinker({[](const Numbers&) { return true; }, Smaller}, UpTo(64));
  EXPECT_TRUE(shrinker.Run().empty());
}

// ---- Fates.

constexpr unsigned kTimeoutSeconds = 30;

TEST(ExitOutcomeTest, AStoryThatReturnsEndsWell) {
  const ExitOutcome outcome = ExitOutcomeOf([] {}, kTimeoutSeconds);
  EXPECT_TRUE(outcome.good);
  EXPECT_EQ(outcome.cause, "");
}

TEST(ExitOutcomeTest, ABrokenInvariantIsTheCause) {
  const ExitOutcome outcome = ExitOutcomeOf([] { RAVEN_CHECK(1 + 1 == 3); }, kTimeoutSeconds);
  EXPECT_FALSE(outcome.good);
  EXPECT_NE(outcome.cause.find("broken invariant: 1 + 1 == 3"), std::string::npos) << outcome.cause;
  EXPECT_EQ(outcome.cause.find('\n'), std::string::npos);
}

TEST(ExitOutcomeTest, ASignalIsTheCause) {
  EXPECT_EQ(ExitOutcomeOf([] { raise(SIGKILL); }, kTimeoutSeconds).cause, "signal 9");
  EXPECT_EQ(ExitOutcomeOf([] { _exit(3); }, kTimeoutSeconds).cause, "exit status 3");
}

TEST(ExitOutcomeTest, AStoryWithoutAnEndIsEnded) {
  const auto endless = [] {
    for (;;) pause();
  };
  EXPECT_EQ(ExitOutcomeOf(endless, 1).cause, "signal 14");
}

}  // namespace
}  // namespace ravenstore::core
