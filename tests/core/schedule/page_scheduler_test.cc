#include "core/schedule/page_scheduler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/core/schedule/schedule_world.h"

namespace ravenstore::core {
namespace {

constexpr ClientId kFirst{1};
constexpr ClientId kSecond{2};

uint32_t ShareOf(ScheduleWorld* world, ClientId id) {
  return world->scheduler().client(id).executor().books().view().limits.pages;
}
bool IsResident(ScheduleWorld* world, ClientId id, TensorNumber tensor) {
  return world->scheduler().client(id).executor().IsResident(tensor);
}
// A pass of a client: the plan knows it from the second one on. One tensor is in use at a time.
void Pass(ScheduleWorld* world, ClientId id, uint32_t tensors) {
  for (uint32_t i = 0; i < tensors; ++i) {
    world->Create(id, i, MiB(2));
    world->Settle();
    ASSERT_FALSE(world->Waits(id, i));
    world->Put(id, i);
  }
  for (uint32_t i = tensors; i-- > 0;) {
    world->Get(id, i);
    world->Settle();
    ASSERT_FALSE(world->Waits(id, i));
    world->Free(id, i);
  }
  world->Settle();
}

// Clients whose calls are known, of which not all fits 24 pages.
void JoinWithPlans(ScheduleWorld* world, const std::vector<ClientId>& ids = {kFirst, kSecond},
                   uint32_t tensors = 20) {
  for (const ClientId id : ids) {
    world->Join(id);
    world->Settle();
  }
  for (int i = 0; i < 4; ++i) {
    for (const ClientId id : ids) Pass(world, id, tensors);
  }
}

TEST(PageSchedulerTest, AClientThatJoinsHasPagesMade) {
  ScheduleWorld world(8);
  world.Join(kFirst);
  EXPECT_EQ(world.Create(kFirst, 0, MiB(6)), CallResult::kWaits);
  world.Settle();
  EXPECT_TRUE(world.WaitingForRoom(kFirst).empty());
  EXPECT_TRUE(IsResident(&world, kFirst, 0));
  EXPECT_EQ(world.physical_pages(), 8u);
  EXPECT_EQ(world.scheduler().pages_made(), 8u);
}

TEST(PageSchedulerTest, ATensorLargerThanTheDeviceIsRefused) {
  ScheduleWorld world(8);
  world.Join(kFirst);
  world.Settle();
  EXPECT_EQ(world.Create(kFirst, 0, MiB(17)), CallResult::kTooLarge);
  EXPECT_EQ(world.Create(kFirst, 0, MiB(16)), CallResult::kHeld);
}

TEST(PageSchedulerTest, ACreateBeyondTheClientsAddressesIsRefused) {
  ScheduleWorld world(8);
  world.Join(kFirst, Bytes(UINT64_MAX), {}, MiB(12));
  world.Settle();
  for (TensorNumber i = 0; i < 4; ++i)
    EXPECT_EQ(world.Create(kFirst, i, MiB(3)), CallResult::kHeld);
  EXPECT_EQ(world.Create(kFirst, 4, MiB(3)), CallResult::kNoAddresses);
  world.Settle();
  // Two holes of 3 MiB are no place for 4 MiB, though less lives than there are addresses.
  world.Free(kFirst, 0);
  world.Free(kFirst, 2);
  world.Settle();
  EXPECT_EQ(world.Create(kFirst, 4, MiB(4)), CallResult::kNoAddresses);
  EXPECT_EQ(world.Create(kFirst, 4, MiB(3)), CallResult::kHeld);
  EXPECT_EQ(world.Create(kFirst, 5, MiB(3)), CallResult::kHeld);
  world.Settle();
  EXPECT_EQ(world.Fault(), "");
}

TEST(PageSchedulerTest, AFreedPlaceIsItsStreamsAndOthersWhenTheStreamHasComeThere) {
  ScheduleWorld world(8);
  world.Join(kFirst);
  world.Settle();
  constexpr StreamId kOne{1};
  constexpr StreamId kTwo{2};
  const auto place_of = [&](TensorNumber tensor) {
    return world.scheduler().client(kFirst).executor().tensors()[tensor].units.first;
  };
  world.Create(kFirst, 0, MiB(2), kOne);
  world.Create(kFirst, 1, MiB(2), kOne);
  world.Settle();
  world.Free(kFirst, 0, kOne);
  world.Create(kFirst, 2, MiB(2), kTwo);
  world.Create(kFirst, 3, MiB(2), kNoStream);
  world.Create(kFirst, 4, MiB(2), kOne);
  EXPECT_EQ(place_of(4), place_of(0)) << "the work that uses it comes after the free";
  EXPECT_EQ(world.Fault(), "");
  // Freed on another stream than it was created on, or on none: late.
  world.Free(kFirst, 1, kTwo);
  world.Create(kFirst, 5, MiB(2), kTwo);
  EXPECT_NE(place_of(5), place_of(1));
  const plan::Unit left = place_of(1);
  world.Settle();
  world.Create(kFirst, 6, MiB(2), kTwo);
  EXPECT_EQ(place_of(6), left);
  world.Settle();
  EXPECT_TRUE(IsResident(&world, kFirst, 6));
  EXPECT_EQ(world.Fault(), "");
}

TEST(PageSchedulerTest, ATensorAsLargeAsTheDeviceBeginsWithAPage) {
  ScheduleWorld world(8);
  world.Join(kFirst);
  world.Settle();
  EXPECT_EQ(world.Create(kFirst, 0, MiB(1)), CallResult::kHeld);
  world.Settle();
  world.Put(kFirst, 0);
  world.Settle();
  EXPECT_EQ(world.Create(kFirst, 1, MiB(16)), CallResult::kHeld);
  world.Settle();
  EXPECT_TRUE(IsResident(&world, kFirst, 1));
}

TEST(PageSchedulerTest, ACreateWithoutAPlaceIsRefused) {
  ScheduleWorld world(8);
  world.Join(kFirst, MiB(4));
  world.Settle();
  for (TensorNumber i = 0; i < 9; ++i) {
    ASSERT_EQ(world.Create(kFirst, i, MiB(2)), CallResult::kHeld);
    world.Settle();
    world.Put(kFirst, i);
    world.Settle();
  }
  EXPECT_EQ(world.Create(kFirst, 9, MiB(2)), CallResult::kNoPlace);
  // Others' pages that have no place elsewhere are on the device.
  world.Join(kSecond, Bytes{});
  world.Settle();
  EXPECT_EQ(world.Create(kSecond, 0, MiB(2)), CallResult::kNoPlace);
  world.Free(kFirst, 0);
  world.Free(kFirst, 1);
  world.Settle();
  EXPECT_NE(world.Create(kSecond, 0, MiB(2)), CallResult::kNoPlace);
  world.Settle();
  EXPECT_TRUE(IsResident(&world, kSecond, 0));
}

TEST(PageSchedulerTest, ClientsThatRankTheirTensorsHaveNoCommonPlan) {
  ScheduleWorld world(8);
  world.Join(kFirst);
  world.Join(kSecond);
  for (int pass = 0; pass < 4; ++pass) {
    for (const ClientId id : {kFirst, kSecond}) Pass(&world, id, 6);
  }
  EXPECT_EQ(ShareOf(&world, kFirst) + ShareOf(&world, kSecond), 16u) << "they have one";
  world.Create(kFirst, 0, MiB(2));
  world.Settle();
  world.scheduler().Put(kFirst, 0, true, {}, Duration(1'000'000'000), Priority::kHigh);
  world.Settle();
  EXPECT_EQ(ShareOf(&world, kFirst) + ShareOf(&world, kSecond), 8u);
}

TEST(PageSchedulerTest, CallsThatWaitForRoomGoOnInOrder) {
  ScheduleWorld world(8);
  world.Join(kFirst);
  world.Settle();
  ASSERT_EQ(world.Create(kFirst, 0, MiB(8)), CallResult::kHeld);
  ASSERT_EQ(world.Create(kFirst, 1, MiB(10)), CallResult::kWaits);
  ASSERT_EQ(world.Create(kFirst, 2, MiB(2)), CallResult::kWaits);
  world.Settle();
  EXPECT_EQ(world.WaitingForRoom(kFirst).size(), 2u);
  world.Put(kFirst, 0);
  world.Settle();
  EXPECT_TRUE(world.WaitingForRoom(kFirst).empty());
  EXPECT_TRUE(IsResident(&world, kFirst, 1));
  EXPECT_TRUE(IsResident(&world, kFirst, 2));
}

TEST(PageSchedulerTest, ACallThatWaitsTooLongLeavesItsPlace) {
  ScheduleWorld world(8);
  world.Join(kFirst);
  world.Settle();
  ASSERT_EQ(world.Create(kFirst, 0, MiB(12)), CallResult::kHeld);
  ASSERT_EQ(world.Create(kFirst, 1, MiB(6)), CallResult::kWaits);
  ASSERT_EQ(world.Create(kFirst, 2, MiB(2)), CallResult::kWaits);
  EXPECT_TRUE(world.Refuse(kFirst, 1));
  world.Settle();
  EXPECT_TRUE(world.IsRowFree(kFirst, 1));
  EXPECT_TRUE(world.WaitingForRoom(kFirst).empty());
  EXPECT_FALSE(world.Refuse(kFirst, 2));
}

TEST(PageSchedulerTest, ACreateWhoseBytesDoNotComeInTimeLeavesItsPlace) {
  ScheduleWorld world(8);
  world.Join(kFirst);
  world.Advance();  // pages are being made
  ASSERT_EQ(world.Create(kFirst, 0, MiB(12)), CallResult::kHeld);
  world.Advance();
  EXPECT_TRUE(world.Waits(kFirst, 0));
  EXPECT_TRUE(world.Refuse(kFirst, 0));
  EXPECT_TRUE(world.IsRowFree(kFirst, 0));
  world.Settle();
  ASSERT_EQ(world.Create(kFirst, 0, MiB(16)), CallResult::kHeld);
  world.Settle();
  EXPECT_TRUE(IsResident(&world, kFirst, 0));
}

TEST(PageSchedulerTest, TheMemoryOfAClientThatLeavesGoesToOthers) {
  ScheduleWorld world(8);
  world.Join(kFirst);
  world.Settle();
  ASSERT_EQ(world.Create(kFirst, 0, MiB(16)), CallResult::kHeld);
  world.Settle();
  world.Join(kSecond);
  ASSERT_EQ(world.Create(kSecond, 0, MiB(16)), CallResult::kWaits);
  world.Settle();
  EXPECT_EQ(world.WaitingForRoom(kSecond).size(), 1u);
  world.Leave(kFirst);
  world.Settle();
  EXPECT_TRUE(IsResident(&world, kSecond, 0));
  EXPECT_FALSE(world.scheduler().HasClient(kFirst));
  EXPECT_EQ(world.Fault(), "");
}

TEST(PageSchedulerTest, AClientMayLeaveWhileItsMovesAreUnderWay) {
  ScheduleWorld world(8);
  world.Join(kFirst);
  world.Advance();
  ASSERT_EQ(world.Create(kFirst, 0, MiB(8)), CallResult::kHeld);
  world.Complete(0);
  world.Advance();
  ASSERT_EQ(world.under_way(), 2u);  // a page is mapped, another is made
  world.Leave(kFirst);
  world.Advance();
  EXPECT_TRUE(world.scheduler().HasClient(kFirst));
  world.Settle();
  EXPECT_FALSE(world.scheduler().HasClient(kFirst));
  EXPECT_EQ(world.physical_pages(), 0u);
}

TEST(PageSchedulerTest, AFailedCopyRefusesTheGetAndTheNextOneTriesAgain) {
  ScheduleWorld world(2);
  world.Join(kFirst);
  world.Settle();
  for (TensorNumber i = 0; i < 2; ++i) {
    ASSERT_EQ(world.Create(kFirst, i, MiB(4)), CallResult::kHeld);
    world.Settle();
    world.Put(kFirst, i);
    world.Settle();
  }
  ASSERT_FALSE(IsResident(&world, kFirst, 0));
  world.Free(kFirst, 1);
  world.Settle();
  ASSERT_EQ(world.Get(kFirst, 0), CallResult::kHeld);
  world.Advance();
  ASSERT_TRUE(world.Waits(kFirst, 0));
  for (int i = 0; i < 100 && world.Waits(kFirst, 0); ++i) {
    world.Complete(0, false);
    world.Advance();
  }
  EXPECT_FALSE(world.scheduler().client(kFirst).executor().tensors()[0].pinned);
  world.Settle();
  ASSERT_EQ(world.Get(kFirst, 0), CallResult::kHeld);
  world.Settle();
  EXPECT_TRUE(IsResident(&world, kFirst, 0));
}

TEST(PageSchedulerTest, ClientsWhoseCallsAreKnownHaveOnePlan) {
  ScheduleWorld world(24);
  JoinWithPlans(&world);
  for (const ClientId id : {kFirst, kSecond}) EXPECT_EQ(ShareOf(&world, id), 24u);
  // A third client has no plan: each has a share.
  world.Join(ClientId{3});
  world.Settle();
  EXPECT_LE(ShareOf(&world, kFirst) + ShareOf(&world, kSecond) + ShareOf(&world, ClientId{3}), 24u);
}

TEST(PageSchedulerTest, WhatFitsHasNoPlan) {
  ScheduleWorld world(24);
  world.Join(kFirst);
  world.Settle();
  for (int i = 0; i < 4; ++i) Pass(&world, kFirst, 16);
  EXPECT_FALSE(world.scheduler().client(kFirst).foresight().has_plan());
  // The pass is known: more than fits has a plan with the next calls.
  for (int i = 0; i < 2; ++i) Pass(&world, kFirst, 30);
  EXPECT_TRUE(world.scheduler().client(kFirst).foresight().has_plan());
}

TEST(PageSchedulerTest, AClientWhoseCallFitsAfterAnothersPutIsNamed) {
  ScheduleWorld world(8);
  for (const ClientId id : {kFirst, kSecond}) world.Join(id);
  world.Settle();
  ASSERT_NE(world.Create(kFirst, 0, MiB(12)), CallResult::kTooLarge);
  world.Settle();
  ASSERT_EQ(world.Create(kSecond, 0, MiB(8)), CallResult::kWaits);
  world.Settle();
  world.Put(kFirst, 0);
  while (world.RunStream(kFirst)) {
  }
  bool named = false;
  for (int i = 0; i < 20 && !named; ++i) {
    world.scheduler().Advance(Duration{i});
    for (const ClientId id : world.scheduler().started()) named |= id == kSecond;
    if (!named && world.under_way() > 0) world.Complete(0);
  }
  EXPECT_TRUE(named);
}

TEST(PageSchedulerTest, AfterACommonPlanEachPlanIsMadeForTheClientsShare) {
  ScheduleWorld world(24);
  JoinWithPlans(&world);
  world.Join(ClientId{3});
  world.Create(kSecond, 0, MiB(2));  // its plan is one for all of the device
  world.Settle();
  world.Put(kSecond, 0);
  ASSERT_LE(ShareOf(&world, kSecond), 12u);
  const uint64_t plans = world.scheduler().client(kSecond).foresight().stats().plans;
  world.Create(kSecond, 1, MiB(2));
  EXPECT_EQ(world.scheduler().client(kSecond).foresight().stats().plans, plans + 1);
}

TEST(PageSchedulerTest, WhenAClientLeavesACommonPlanTheOthersHaveAnotherOne) {
  for (const bool leaves : {true, false}) {
    ScheduleWorld world(24);
    JoinWithPlans(&world, {kFirst, kSecond, ClientId{3}}, 14);
    const auto plans = [&] { return world.scheduler().client(kFirst).foresight().stats().plans; };
    for (const ClientId removed : {ClientId{3}, kSecond}) {
      ASSERT_EQ(ShareOf(&world, kFirst), 24u);
      const uint64_t made = plans();
      if (leaves) {
        world.Leave(removed);
      } else {
        world.scheduler().EndCalls(removed);
      }
      EXPECT_EQ(plans(), made + 1);
      Pass(&world, kFirst, 14);
    }
    EXPECT_EQ(world.Fault(), "");
  }
}

TEST(PageSchedulerTest, ACallRightAfterACommonPlanLeavesOthersTheirPages) {
  ScheduleWorld world(24);
  JoinWithPlans(&world);
  ASSERT_EQ(world.Create(kFirst, 0, MiB(2)), CallResult::kHeld);
  world.Settle();
  world.Join(ClientId{3});
  ASSERT_EQ(ShareOf(&world, kSecond), 24u);
  EXPECT_EQ(world.Create(kSecond, 0, MiB(48)), CallResult::kWaits);
}

}  // namespace
}  // namespace ravenstore::core
