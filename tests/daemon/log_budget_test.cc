#include "daemon/log_budget.h"

#include <gtest/gtest.h>

namespace ravenstore::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Sums = std::vector<std::pair<uid_t, uint64_t>>;

constexpr core::Tick kBegin{std::chrono::hours(1)};

// How many of `lines` about `uid` at `now` are written.
int64_t Written(LogBudget& budget, uid_t uid, int64_t lines, core::Tick now) {
  int64_t written = 0;
  for (int64_t i = 0; i < lines; ++i) written += budget.Allow(uid, now) ? 1 : 0;
  return written;
}

TEST(LogBudgetTest, ALoopOfOneUserIsCutToItsBurstAndRate) {
  LogBudget budget;
  EXPECT_EQ(Written(budget, 1000, 100'000, kBegin), LogBudget::kBurst);
  EXPECT_EQ(Written(budget, 1000, 100'000, kBegin + milliseconds(999)), 0);
  EXPECT_EQ(Written(budget, 1000, 100'000, kBegin + seconds(3)), 3);
}

TEST(LogBudgetTest, AnotherUsersLinesAreNotCounted) {
  LogBudget budget;
  Written(budget, 1000, 100'000, kBegin);
  EXPECT_EQ(Written(budget, 1001, 10, kBegin), 10);
}

TEST(LogBudgetTest, WhatWasLeftOutIsSummedUpOnceInAWhile) {
  LogBudget budget;
  EXPECT_EQ(budget.NextDue(), core::kNever);
  Written(budget, 1000, LogBudget::kBurst + 7, kBegin);
  Written(budget, 1001, LogBudget::kBurst, kBegin);
  EXPECT_EQ(budget.TakeDue(kBegin), Sums());
  EXPECT_EQ(budget.NextDue(), kBegin + LogBudget::kSumEvery);
  EXPECT_EQ(budget.TakeDue(kBegin + LogBudget::kSumEvery), (Sums{{1000, 7}}));
  EXPECT_EQ(budget.TakeDue(kBegin + LogBudget::kSumEvery), Sums());
  EXPECT_EQ(budget.NextDue(), core::kNever);
}

TEST(LogBudgetTest, UsersWhoSayNothingAreForgotten) {
  LogBudget budget;
  for (uid_t uid = 0; uid < 1000; ++uid) budget.Allow(uid, kBegin);
  EXPECT_EQ(budget.users(), 1000u);
  budget.TakeDue(kBegin + LogBudget::kLineEvery);
  EXPECT_EQ(budget.users(), 0u);
}

TEST(LogBudgetTest, ASilentUserHasAllOfItsBurstAgain) {
  LogBudget budget;
  Written(budget, 1000, 100'000, kBegin);
  const core::Tick later = kBegin + LogBudget::kBurst * LogBudget::kLineEvery;
  EXPECT_EQ(Written(budget, 1000, 100'000, later), LogBudget::kBurst);
}

}  // namespace
}  // namespace ravenstore::daemon
