#include "daemon/turn_budget.h"

#include <gtest/gtest.h>

namespace ravenstore::daemon {
namespace {

using core::TenantId;

constexpr TenantId kUser{1000};
constexpr TenantId kOther{1001};

TEST(TurnBudgetTest, AUserAloneMayTakeTheWholeTurn) {
  TurnBudget budget(256, 16);
  budget.BeginTurn();
  EXPECT_EQ(budget.Left(kUser), 256u);
  budget.Spend(kUser, 250);
  EXPECT_EQ(budget.Left(kUser), 6u);
  budget.Spend(kUser, 10);
  EXPECT_EQ(budget.Left(kUser), 0u);
  EXPECT_EQ(budget.Left(kOther), 256u);
  budget.BeginTurn();
  EXPECT_EQ(budget.Left(kUser), 252u) << "4 more than a turn were spent";
  budget.BeginTurn();
  EXPECT_EQ(budget.Left(kUser), 256u);
}

TEST(TurnBudgetTest, TheNextTurnIsDividedAmongThoseWhoSpentInThisOne) {
  TurnBudget budget(256, 16);
  budget.BeginTurn();
  for (uint32_t user = 0; user < 4; ++user) budget.Spend(TenantId{user}, 1);
  budget.BeginTurn();
  EXPECT_EQ(budget.Left(kUser), 64u);
  budget.BeginTurn();
  EXPECT_EQ(budget.Left(kUser), 256u) << "nobody wanted anything in between";
}

TEST(TurnBudgetTest, WorkBeyondATurnIsPaidForInTheTurnsAfterIt) {
  TurnBudget budget(256, 16);
  budget.BeginTurn();
  budget.Spend(kUser, 256 * 3 + 10);
  for (int turn = 0; turn < 2; ++turn) {
    budget.BeginTurn();
    EXPECT_EQ(budget.Left(kUser), 0u);
    EXPECT_EQ(budget.Left(kOther), 256u);
  }
  budget.BeginTurn();
  EXPECT_EQ(budget.Left(kUser), 246u);
  budget.Spend(kUser, 10);
  EXPECT_EQ(budget.Left(kUser), 236u);
  budget.BeginTurn();
  EXPECT_EQ(budget.Left(kUser), 256u);
}

TEST(TurnBudgetTest, EverybodyHasSomeHoweverManyThereAre) {
  TurnBudget budget(256, 16);
  for (uint32_t user = 0; user < 5000; ++user) budget.Spend(TenantId{user}, 1);
  budget.BeginTurn();
  EXPECT_EQ(budget.Left(kUser), 16u);
}

}  // namespace
}  // namespace ravenstore::daemon
