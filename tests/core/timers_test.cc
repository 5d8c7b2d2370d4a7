#include "core/timers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

namespace ravenstore::core {
namespace {

constexpr Tick At(int64_t ns) {
  return Tick(Duration(ns));
}

TEST(TimersTest, TheEarliestIsDueFirst) {
  Timers<int> timers;
  EXPECT_EQ(timers.Next(), kNever);
  timers.Arm(1, At(30));
  timers.Arm(2, At(20));
  timers.Arm(3, At(10));
  EXPECT_EQ(timers.Next(), At(10));
  EXPECT_EQ(timers.Due(At(9)), std::nullopt);
  EXPECT_EQ(timers.Due(At(25)), 3);
  timers.Disarm(3);
  EXPECT_EQ(timers.Due(At(25)), 2);
  timers.Disarm(2);
  EXPECT_EQ(timers.Due(At(25)), std::nullopt);
  EXPECT_EQ(timers.Next(), At(30));
}

TEST(TimersTest, OfSeveralAtTheSameInstantTheSmallestKeyIsDueFirst) {
  Timers<int> timers;
  timers.Arm(2, At(10));
  timers.Arm(1, At(10));
  EXPECT_EQ(timers.Due(At(10)), 1);
}

TEST(TimersTest, WhatIsArmedAgainIsDueAtTheNewInstantAlone) {
  Timers<int> timers;
  timers.Arm(1, At(10));
  timers.Arm(1, At(30));
  EXPECT_EQ(timers.Next(), At(30));
  timers.Arm(1, At(20));
  EXPECT_EQ(timers.Next(), At(20));
  EXPECT_EQ(timers.size(), 1u);
}

TEST(TimersTest, ArmByOnlyBringsForward) {
  Timers<int> timers;
  timers.ArmBy(1, At(20));
  timers.ArmBy(1, At(30));
  EXPECT_EQ(timers.Next(), At(20));
  timers.ArmBy(1, At(10));
  EXPECT_EQ(timers.Next(), At(10));
}

TEST(TimersTest, NothingIsDueBecauseOfWhatIsArmedForNever) {
  Timers<int> timers;
  timers.Arm(1, kNever);
  EXPECT_EQ(timers.Next(), kNever);
  timers.Disarm(2);
  EXPECT_EQ(timers.size(), 1u);
}

TEST(TimersTest, AgreesWithAPlainTable) {
  constexpr int kKeys = 16;
  std::mt19937 random(1);
  Timers<int> timers;
  std::map<int, Tick> model;
  for (int step = 0; step < 10000; ++step) {
    const int key = static_cast<int>(random() % kKeys);
    const Tick when = At(random() % 64);
    switch (random() % 4) {
      case 0:
        timers.Arm(key, when);
        model[key] = when;
        break;
      case 1: {
        timers.ArmBy(key, when);
        Tick& armed = model.try_emplace(key, when).first->second;
        armed = std::min(armed, when);
        break;
      }
      default:
        timers.Disarm(key);
        model.erase(key);
        break;
    }
    const auto earliest =
        std::min_element(model.begin(), model.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    ASSERT_EQ(timers.size(), model.size());
    ASSERT_EQ(timers.Next(), earliest == model.end() ? kNever : earliest->second);
    const std::optional<int> due = timers.Due(when);
    const bool is_due = earliest != model.end() && earliest->second <= when;
    ASSERT_EQ(due, is_due ? std::optional(earliest->first) : std::nullopt);
  }
}

}  // namespace
}  // namespace ravenstore::core
