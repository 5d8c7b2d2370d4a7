#include "interceptor/budgets.h"

#include <gtest/gtest.h>

#include "tests/interceptor/fake_devices.h"

namespace ravenstore::interceptor {
namespace {

using BudgetsTest = FakeDevices;

TEST_F(BudgetsTest, WithoutABudgetEverythingFits) {
  EXPECT_EQ(VisibleOf(0), 0u);
  EXPECT_TRUE(CanEverFit(0, uint64_t{1} << 60));
  EXPECT_TRUE(HoldIfRoom(0, uint64_t{1} << 60));
  EXPECT_EQ(Room(0), ~uint64_t{0});
  EXPECT_EQ(Excess(0, 1), 0u);
}

TEST_F(BudgetsTest, AJobHoldsNoMoreThanItsOwn) {
  Row().visible = 100;
  EXPECT_TRUE(HoldIfRoom(0, 60));
  EXPECT_EQ(Room(0), 40u);
  EXPECT_FALSE(HoldIfRoom(0, 41));
  EXPECT_EQ(Used(), 60u) << "what was refused is not held";
  EXPECT_EQ(Excess(0, 50), 10u);
  EXPECT_TRUE(CanEverFit(0, 100));
  EXPECT_FALSE(CanEverFit(0, 101));
  EXPECT_EQ(Room(1), ~uint64_t{0}) << "of another device";
}

TEST_F(BudgetsTest, OfWhatIsGrantedAndWhatIsAskedTheLessHolds) {
  Row().visible = 100;
  Row().asked = 80;
  EXPECT_EQ(VisibleOf(0), 80u);
  Row().visible = 0;
  EXPECT_EQ(VisibleOf(0), 80u);
  EXPECT_EQ(VisibleOf(-1), 0u);
}

TEST_F(BudgetsTest, AUsersProcessesHoldNoMoreThanTheirsTogether) {
  Row().visible = 100;
  Row().together = 50;
  Hold(0, 30);
  EXPECT_EQ(Room(0), 20u);
  EXPECT_FALSE(HoldIfRoom(0, 21));
  EXPECT_TRUE(HoldIfRoom(0, 20));
  EXPECT_EQ(Excess(0, 5), 5u);
  EXPECT_FALSE(CanEverFit(0, 51));
}

TEST_F(BudgetsTest, AFigureThatIsSetChangesWhatIsHeldByTheDifference) {
  Gauge(0, LegacyKind::kPool, 30);
  EXPECT_EQ(Used(), 30u);
  Gauge(0, LegacyKind::kPool, 20, 5);
  EXPECT_EQ(Kind(LegacyKind::kPool), 20u);
  EXPECT_EQ(Used(), 15u);
  Gauge(-1, LegacyKind::kPool, 99);
  EXPECT_EQ(Used(), 15u);
}

}  // namespace
}  // namespace ravenstore::interceptor
