#include "daemon/reclaim_requests.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::GiB;
using core::Tick;
using std::chrono::milliseconds;
using std::chrono::seconds;

Tick At(std::chrono::nanoseconds time) {
  return Tick(time);
}

constexpr Bytes kMargin = core::MiB(64);

// Of a device of 100 GiB that the store holds 90 GiB of, and others the rest.
ReclaimRequests::Reclaim Reclaim(uint64_t requester, uint64_t request, Bytes bytes,
                                 uint32_t user = 7) {
  return {.requester = requester,
          .request = request,
          .user = core::TenantId{user},
          .bytes = bytes,
          .most = GiB(100),
          .kept = {},
          .held = GiB(90),
          .free = kMargin};
}

TEST(ReclaimRequestsTest, LowersTheLimitAndAnswersOnceTheMemoryIsReleased) {
  ReclaimRequests reclaims({GiB(100)});
  reclaims.Begin(Reclaim(1, 7, GiB(20)), At(seconds(1)));
  auto outcome = reclaims.Update({GiB(90)}, {GiB(5)}, At(seconds(1)));
  ASSERT_EQ(outcome.limits.size(), 1u);
  EXPECT_EQ(outcome.limits[0].capacity, GiB(70));
  EXPECT_TRUE(outcome.answers.empty());
  EXPECT_TRUE(reclaims.waiting());

  outcome = reclaims.Update({GiB(80)}, {GiB(5)}, At(milliseconds(1100)));
  EXPECT_TRUE(outcome.answers.empty());
  outcome = reclaims.Update({GiB(70)}, {GiB(5)}, At(milliseconds(1200)));
  ASSERT_EQ(outcome.answers.size(), 1u);
  EXPECT_EQ(outcome.answers[0].requester, 1u);
  EXPECT_EQ(outcome.answers[0].request, 7u);
  EXPECT_EQ(outcome.answers[0].given, GiB(20));
  EXPECT_FALSE(reclaims.waiting());
  EXPECT_TRUE(reclaims.lowered());
}

TEST(ReclaimRequestsTest, AsksOfTwoJobsAddUp) {
  ReclaimRequests reclaims({GiB(100)});
  reclaims.Begin(Reclaim(1, 1, GiB(20)), At(seconds(1)));
  reclaims.Begin(Reclaim(2, 1, GiB(10)), At(seconds(1)));
  const auto outcome = reclaims.Update({GiB(90)}, {Bytes{0}}, At(seconds(1)));
  ASSERT_EQ(outcome.limits.size(), 2u);
  // The device's free memory goes to the first request.
  EXPECT_EQ(outcome.limits[1].capacity, GiB(60) - kMargin);
}

TEST(ReclaimRequestsTest, AnswersWhatWasFreedWhenNoMoreIs) {
  ReclaimRequests reclaims({GiB(100)});
  reclaims.Begin(Reclaim(1, 1, GiB(20)), At(seconds(1)));
  reclaims.Update({GiB(90)}, {Bytes{0}}, At(seconds(1)));
  EXPECT_TRUE(reclaims.Update({GiB(85)}, {Bytes{0}}, At(milliseconds(1500))).answers.empty());
  const auto outcome = reclaims.Update({GiB(85)}, {Bytes{0}}, At(milliseconds(2600)));
  ASSERT_EQ(outcome.answers.size(), 1u);
  EXPECT_EQ(outcome.answers[0].given, GiB(5));
  // What could not be given up may stay.
  ASSERT_EQ(outcome.limits.size(), 1u);
  EXPECT_EQ(outcome.limits[0].capacity, GiB(85));
}

TEST(ReclaimRequestsTest, AnEmptyStoreGivesNothingImmediately) {
  ReclaimRequests reclaims({GiB(100)});
  reclaims.Begin(Reclaim(1, 1, GiB(20)), At(seconds(1)));
  const auto outcome = reclaims.Update({Bytes{0}}, {Bytes{0}}, At(seconds(1)));
  ASSERT_EQ(outcome.answers.size(), 1u);
  EXPECT_EQ(outcome.answers[0].given, Bytes{0});
}

TEST(ReclaimRequestsTest, ARequestForMoreThanThereIsGetsNothingAndNothingIsEmptied) {
  ReclaimRequests reclaims({GiB(100)});
  reclaims.Begin(Reclaim(1, 7, Bytes{~uint64_t{0}}), At(seconds(1)));
  reclaims.Begin(Reclaim(2, 3, GiB(91)), At(seconds(1)));
  const auto outcome = reclaims.Update({GiB(90)}, {Bytes{0}}, At(seconds(1)));
  EXPECT_TRUE(outcome.limits.empty());
  ASSERT_EQ(outcome.answers.size(), 2u);
  EXPECT_EQ(outcome.answers[0].request, 7u);
  EXPECT_EQ(outcome.answers[0].given, Bytes{0});
  EXPECT_EQ(outcome.answers[1].given, Bytes{0});
  EXPECT_FALSE(reclaims.waiting());
  EXPECT_FALSE(reclaims.lowered());
}

TEST(ReclaimRequestsTest, ARequestForAllThereIsGetsIt) {
  ReclaimRequests reclaims({GiB(100)});
  reclaims.Begin(Reclaim(1, 7, GiB(90)), At(seconds(1)));
  // What was given back since the driver was asked is not missing.
  const auto outcome = reclaims.Update({GiB(80)}, {Bytes{0}}, At(seconds(1)));
  ASSERT_EQ(outcome.limits.size(), 1u);
  EXPECT_EQ(outcome.limits[0].capacity, Bytes{0});
}

TEST(ReclaimRequestsTest, TheStoreMayHaveItAgainOnceTheJobFreedItAndSomeTimePassed) {
  ReclaimRequests reclaims({GiB(100)});
  reclaims.Begin(Reclaim(1, 1, GiB(20)), At(seconds(1)));
  reclaims.Update({GiB(90)}, {Bytes{0}}, At(seconds(1)));
  reclaims.Update({GiB(70)}, {GiB(20)}, At(seconds(1)));
  EXPECT_TRUE(reclaims.Update({GiB(70)}, {Bytes{0}}, At(seconds(2))).limits.empty());
  // Still held by the job: no more than the rest.
  auto outcome = reclaims.Update({GiB(70)}, {GiB(20)}, At(seconds(4)));
  ASSERT_EQ(outcome.limits.size(), 1u);
  EXPECT_EQ(outcome.limits[0].capacity, GiB(80));
  outcome = reclaims.Update({GiB(70)}, {Bytes{0}}, At(seconds(5)));
  ASSERT_EQ(outcome.limits.size(), 1u);
  EXPECT_EQ(outcome.limits[0].capacity, GiB(100));
  EXPECT_FALSE(reclaims.lowered());
}

TEST(ReclaimRequestsTest, AJobGetsNoMoreThanItMayHave) {
  ReclaimRequests reclaims({GiB(100)});
  ReclaimRequests::Reclaim reclaim = Reclaim(1, 7, GiB(20));
  reclaim.most = GiB(10);
  reclaims.Begin(reclaim, At(seconds(1)));
  const auto outcome = reclaims.Update({GiB(90)}, {}, At(seconds(1)));
  ASSERT_EQ(outcome.answers.size(), 1u);
  EXPECT_TRUE(outcome.limits.empty());
}

TEST(ReclaimRequestsTest, WhatIsGuaranteedToTheStoresClientsStays) {
  ReclaimRequests reclaims({GiB(100)});
  ReclaimRequests::Reclaim reclaim = Reclaim(1, 7, GiB(85));
  reclaim.kept = GiB(12);
  reclaims.Begin(reclaim, At(seconds(1)));
  EXPECT_EQ(reclaims.Update({GiB(90)}, {}, At(seconds(1))).answers.size(), 1u) << "no 85 are left";
  reclaim.bytes = GiB(78);
  reclaims.Begin(reclaim, At(seconds(1)));
  const auto outcome = reclaims.Update({GiB(90)}, {}, At(seconds(1)));
  ASSERT_EQ(outcome.limits.size(), 1u);
  EXPECT_EQ(outcome.limits[0].capacity, GiB(12));
}

TEST(ReclaimRequestsTest, WhatIsFreeAlreadyIsNotTakenFromTheStore) {
  ReclaimRequests reclaims({GiB(100)});
  reclaims.Begin(Reclaim(1, 1, GiB(20)), At(seconds(1)));
  reclaims.Update({GiB(90)}, {}, At(seconds(1)));
  reclaims.Update({GiB(70)}, {}, At(seconds(1)));
  // The job took none of it and asks again, and again.
  for (int i = 0; i < 10; ++i) {
    ReclaimRequests::Reclaim again = Reclaim(1, 2, GiB(20));
    again.held = GiB(70);
    again.free = GiB(20) + kMargin;
    reclaims.Begin(again, At(seconds(1)));
    const auto outcome = reclaims.Update({GiB(70)}, {}, At(seconds(1)));
    EXPECT_TRUE(outcome.limits.empty());
    EXPECT_EQ(outcome.answers.size(), 1u);
  }
  // And does not keep the store from having it again.
  const auto outcome = reclaims.Update({GiB(70)}, {Bytes{0}}, At(seconds(4)));
  ASSERT_EQ(outcome.limits.size(), 1u);
  EXPECT_EQ(outcome.limits[0].capacity, GiB(100));
}

TEST(ReclaimRequestsTest, AUserIsGivenADevicesSizeImmediatelyAndThenAsMuchInHalfAMinute) {
  ReclaimRequests reclaims({GiB(100)});
  Bytes given;
  for (int i = 0; i < 300; ++i) {
    // As fast as the store takes it again, for a minute and a half.
    const Tick now = At(milliseconds(1000 + 300 * i));
    reclaims.Begin(Reclaim(1, 1, GiB(50)), now);
    const auto outcome = reclaims.Update({GiB(90)}, {}, now);
    for (const auto& limit : outcome.limits) given += GiB(90) - limit.capacity;
    reclaims.Update({GiB(40)}, {}, now);
    reclaims.Update({GiB(40)}, {Bytes{0}}, now + seconds(3));
  }
  EXPECT_GT(given, GiB(300));
  EXPECT_LE(given, GiB(400) + GiB(1));
  // Another user is not kept waiting for that.
  reclaims.Begin(Reclaim(2, 1, GiB(50), 8), At(seconds(91)));
  EXPECT_EQ(reclaims.Update({GiB(90)}, {}, At(seconds(91))).limits.size(), 1u);
}

TEST(ReclaimRequestsTest, NothingComesBackBeforeSomebodyLooked) {
  ReclaimRequests reclaims({GiB(100)});
  reclaims.Begin(Reclaim(1, 1, GiB(20)), At(seconds(1)));
  reclaims.Update({GiB(90)}, {}, At(seconds(1)));
  reclaims.Update({GiB(70)}, {}, At(seconds(1)));
  EXPECT_TRUE(reclaims.Update({GiB(70)}, {}, At(seconds(9))).limits.empty());
}

TEST(ReclaimRequestsTest, ForgetsJobsThatHungUp) {
  ReclaimRequests reclaims({GiB(100)});
  reclaims.Begin(Reclaim(1, 1, GiB(20)), At(seconds(1)));
  reclaims.Forget(1);
  EXPECT_FALSE(reclaims.waiting());
}

}  // namespace
}  // namespace ravenstore::daemon
