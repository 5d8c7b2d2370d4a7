#include "interceptor/elastic_share.h"

#include <gtest/gtest.h>

#include "interceptor/budgets.h"
#include "tests/interceptor/fake_devices.h"

namespace ravenstore::interceptor {
namespace {

constexpr uint64_t kBegin = uint64_t{1} << 60;
constexpr uint64_t kBudget = 100;

class ElasticShareTest : public FakeDevices {
 protected:
  uint64_t Allowed(uint64_t now_ns = kBegin) { return share_.Allowed(0, now_ns); }

  EngineShare share_{};
};

TEST_F(ElasticShareTest, OfABudgetItIsWhatTheJobDoesNotHoldBesides) {
  Row().visible = kBudget;
  EXPECT_EQ(Allowed(), kBudget);
  ASSERT_TRUE(share_.Take(0, 40));
  EXPECT_EQ(Used(), 40u);
  EXPECT_EQ(Kind(LegacyKind::kVmm), 40u);
  EXPECT_EQ(Allowed(), kBudget) << "the engine's own is no other's";
  Hold(0, 30);
  EXPECT_EQ(Allowed(), 70u);
  EXPECT_FALSE(share_.Take(0, 31));
  share_.Give(0, 40);
  EXPECT_EQ(Used(), 30u);
  EXPECT_EQ(Kind(LegacyKind::kVmm), 0u);
}

TEST_F(ElasticShareTest, WhatTheJobHeldLatelyIsLeftToIt) {
  Row().visible = kBudget;
  Hold(0, 30);
  EXPECT_EQ(Allowed(), 70u);
  Hold(0, 0 - uint64_t{30});
  const uint64_t next = kBegin + EngineShare::kWhileNs + 1;
  EXPECT_EQ(Allowed(kBegin + EngineShare::kWhileNs), 70u);
  EXPECT_EQ(Allowed(next), 70u) << "in the while before";
  EXPECT_EQ(Allowed(next + EngineShare::kWhileNs + 1), kBudget);
  EXPECT_EQ(share_.MostOthers(0), 30u);
}

TEST_F(ElasticShareTest, APausedJobsEngineHoldsNothing) {
  Row().visible = kBudget;
  Row().paused = 1;
  EXPECT_EQ(Allowed(), 0u);
}

TEST_F(ElasticShareTest, ItIsLessWhileAnAllocationOfTheDriversWaitsForRoom) {
  Row().visible = kBudget;
  ASSERT_TRUE(share_.Take(0, kBudget));
  EXPECT_FALSE(share_.MakeRoom(kBudget + 1)) << "it does not hold as much";
  EXPECT_TRUE(share_.MakeRoom(25));
  EXPECT_EQ(Allowed(), 75u);
  share_.RoomMade(25);
  EXPECT_EQ(Allowed(), kBudget);
}

TEST_F(ElasticShareTest, WithoutABudgetItIsWhatWasFreeLessWhatItGaveUp) {
  constexpr uint64_t kStep = EngineShare::kRoomStep;
  share_.Begin(10 * kStep);
  EXPECT_EQ(Allowed(), 10 * kStep);
  ASSERT_TRUE(share_.Take(0, 4 * kStep));
  EXPECT_TRUE(share_.MakeRoom(1));
  EXPECT_EQ(Allowed(), 3 * kStep) << "a step at least";
  EXPECT_TRUE(share_.MakeRoom(2 * kStep));
  share_.RoomMade(2 * kStep);
  EXPECT_EQ(Allowed(), 2 * kStep) << "for good";
}

TEST_F(ElasticShareTest, TheJobLearnsThatWhatItAllocatedIsNotFreeWhereverItLies) {
  ASSERT_TRUE(share_.Take(0, 40));
  share_.Allocated(50);
  share_.AddSegment(20);
  EXPECT_EQ(share_.FreeToJob(60), 30u);
  EXPECT_EQ(share_.FreeToJob(10), 0u);
  EXPECT_EQ(share_.FreeToJob(~uint64_t{0}), ~uint64_t{0}) << "there is no bound";
  share_.RemoveSegment(20);
  EXPECT_EQ(share_.FreeToJob(60), 50u);
}

TEST_F(ElasticShareTest, RemembersTheMostThatWasAllocated) {
  share_.Allocated(50);
  share_.Freed(30);
  share_.Allocated(10);
  EXPECT_EQ(share_.live(), 30u);
  EXPECT_EQ(share_.high(), 50u);
  share_.ResetHigh();
  EXPECT_EQ(share_.high(), 30u);
}

}  // namespace
}  // namespace ravenstore::interceptor
