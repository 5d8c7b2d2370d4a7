// Where tensors go that leave their device, when there are more pools than the host's.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;

constexpr PoolId kPeer{2};
constexpr PoolId kFile{3};

// The device holds two tensors of 4 KiB, a fast peer two and a slow file many.
Script::Setting FourPools() {
  Script::Setting setting;
  setting.capacity = KiB(8);
  setting.host = KiB(16);
  setting.others = {{PoolKind::kPeer, KiB(8), 400e9, 400e9}, {PoolKind::kFile, KiB(64), 7e9, 5e9}};
  return setting;
}

// Makes tensors, each in the room that the copies before it leave. Those that were made first are
// needed last.
void Fill(Script& s, const std::vector<std::string>& names) {
  static int64_t order = 1000;
  for (const std::string& name : names)
    s.Create(name, KiB(4)).AllCopiesDone().Put(name, Order(--order));
}

PoolId PoolOfCopy(Script& s, const std::string& name) {
  EXPECT_TRUE(s.View(name).has_copy) << name;
  return s.View(name).away;
}

TEST(PlannerAwayTest, WhatLeavesGoesToTheNearestPoolThatHasRoom) {
  Script s(FourPools());
  Fill(s, {"A", "B", "C", "D"});
  EXPECT_EQ(PoolOfCopy(s, "A"), kPeer);
  EXPECT_EQ(PoolOfCopy(s, "B"), kPeer);
  Fill(s, {"E", "F", "G", "H", "I"});
  for (const char* name : {"C", "D", "E", "F"}) EXPECT_EQ(PoolOfCopy(s, name), kHostPool) << name;
  EXPECT_EQ(PoolOfCopy(s, "G"), kFile);
  EXPECT_EQ(s.world().planner().OtherTier(kPeer).used, KiB(8));
  EXPECT_EQ(s.world().planner().OtherTier(kFile).used, KiB(4));
}

TEST(PlannerAwayTest, WhatLeavesTogetherIsSharedByPeersThatAreEquallyNear) {
  Script::Setting setting = FourPools();
  setting.capacity = KiB(16);
  setting.others = {{PoolKind::kPeer, KiB(64), 400e9, 400e9},
                    {PoolKind::kPeer, KiB(64), 400e9, 400e9}};
  Script s(setting);
  Fill(s, {"A", "B", "C", "D"});
  s.Create("E", KiB(16));  // all four make room
  std::map<PoolId, int> copies;
  for (const char* name : {"A", "B", "C", "D"}) {
    EXPECT_TRUE(s.IsCopying(name)) << name;
    ++copies[s.View(name).away];
  }
  EXPECT_EQ(copies, (std::map<PoolId, int>{{kPeer, 2}, {PoolId{3}, 2}}));
}

// Nor does it count as under way, which the invariants say after each event.
TEST(PlannerAwayTest, WhatFindsNoRoomForAllThatLeavesTogetherStays) {
  Script::Setting setting = FourPools();
  setting.capacity = KiB(16);
  setting.host = KiB(4);
  setting.others = {{PoolKind::kPeer, KiB(4), 400e9, 400e9}};
  Script s(setting);
  Fill(s, {"A", "B", "C", "D"});
  s.Create("E", KiB(16));  // of four that must leave two find a place
  for (const char* name : {"A", "B", "C", "D"}) EXPECT_FALSE(s.IsCopying(name)) << name;
  EXPECT_EQ(s.world().planner().OtherTier(kPeer).used, Bytes{0});
}

TEST(PlannerAwayTest, ATensorComesBackFromThePoolWhereItLies) {
  Script s(FourPools());
  Fill(s, {"A", "B", "C", "D", "E"});
  ASSERT_EQ(PoolOfCopy(s, "A"), kPeer);
  ASSERT_EQ(PoolOfCopy(s, "C"), kHostPool);
  for (const char* name : {"A", "C"}) {
    s.Get(name).AllCopiesDone().Use(name);  // ends the test when bytes are wrong
    EXPECT_EQ(s.StateOf(name), State::kInUse);
    s.PutUnchanged(name);
  }
}

TEST(PlannerAwayTest, WhatWasWrittenGivesItsOldCopyUpWhereverThatIs) {
  Script s(FourPools());
  Fill(s, {"A", "B", "C"});
  ASSERT_EQ(PoolOfCopy(s, "A"), kPeer);
  s.Get("A").AllCopiesDone().Put("A");
  EXPECT_FALSE(s.View("A").has_copy);
}

TEST(PlannerAwayTest, ATenantsBudgetHoldsForEachPool) {
  Script s(FourPools());
  s.TenantBudgets({KiB(8), KiB(1024), std::nullopt, {{kPeer, KiB(4)}}});
  Fill(s, {"A", "B", "C", "D"});
  EXPECT_EQ(PoolOfCopy(s, "A"), kPeer);
  EXPECT_EQ(PoolOfCopy(s, "B"), kHostPool);
  s.Free("A");
  Fill(s, {"E"});
  EXPECT_EQ(PoolOfCopy(s, "C"), kPeer);
}

TEST(PlannerAwayTest, RoomThatRedundantCopiesTakeIsNearerThanASlowerPool) {
  Script::Setting setting = FourPools();
  setting.host = KiB(4);
  setting.others = {{PoolKind::kFile, KiB(64), 7e6, 50e9}};
  Script s(setting);
  Fill(s, {"A", "B", "C"});
  ASSERT_EQ(PoolOfCopy(s, "A"), kHostPool);
  s.Free("C");
  s.Get("A").AllCopiesDone();  // its copy is redundant now
  Fill(s, {"D"});
  EXPECT_EQ(PoolOfCopy(s, "B"), kHostPool);
  EXPECT_FALSE(s.View("A").has_copy);
  // And once more: room that such copies take is no lack of room.
  s.PutUnchanged("A", Order(2000)).Free("D");
  s.Get("B").AllCopiesDone();
  Fill(s, {"E"});
  EXPECT_EQ(PoolOfCopy(s, "A"), kHostPool);
}

// Two tenants' redundant copies fill the host, one of the first's and two of the second's; for the
// third one's tensor that leaves one makes way.
std::string WhoseCopyMakesWay(const Budgets& first, const Budgets& second) {
  Script s({.host = KiB(12)});
  const auto attach = [&s](uint32_t tenant, Budgets budgets) {
    budgets.device = KiB(64);
    budgets.host = KiB(12);
    s.world().SetTenant(TenantId{tenant}, budgets);
    budgets.device = KiB(4);
    s.As(s.world().Attach(TenantId{tenant}, budgets));
  };
  const auto copy = [&s](const std::string& name) {
    s.Make(name, KiB(4)).Create("away", KiB(4)).AllCopiesDone().Free("away");
    s.Get(name).AllCopiesDone().PutUnchanged(name);
  };
  attach(2, first);
  copy("A");
  attach(3, second);
  copy("B");
  attach(3, second);
  copy("C");
  attach(4, {KiB(64), KiB(12)});
  s.Make("D", KiB(4)).Create("E", KiB(4)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("D"), Script::State::kAway);
  std::string gone;
  for (const char* name : {"A", "B", "C"}) gone += s.View(name).has_copy ? "" : name;
  return gone;
}

TEST(PlannerAwayTest, RedundantCopiesOfALowerPriorityThenOfMoreForTheWeightMakeWayFirst) {
  const auto with = [](TenantPriority priority, std::optional<uint32_t> weight) {
    return Budgets{.device = {}, .host = {}, .weight = weight, .priority = priority};
  };
  constexpr TenantPriority kNormal = TenantPriority::kNormal;
  EXPECT_EQ(WhoseCopyMakesWay({}, {}), "A") << "in order of the clients";
  EXPECT_EQ(WhoseCopyMakesWay({}, with(TenantPriority::kLow, {})), "B");
  EXPECT_EQ(WhoseCopyMakesWay(with(TenantPriority::kHigh, {}), {}), "B");
  EXPECT_EQ(WhoseCopyMakesWay(with(kNormal, 1), {}), "B");
  EXPECT_EQ(WhoseCopyMakesWay(with(kNormal, 1), with(kNormal, 3)), "A");
}

TEST(PlannerAwayTest, AScarcePoolIsSharedWithTheNextByHowBusyItsLinkIs) {
  Script::Setting setting = FourPools();
  setting.capacity = KiB(16);
  setting.host = KiB(8);
  setting.others = {{PoolKind::kFile, KiB(64), 7e6, 5e6}};
  setting.preclean = true;
  setting.in_flight = KiB(4);  // one copy at a time over each link
  constexpr PoolId file{2};
  Script s(setting);
  Fill(s, {"A", "B", "C", "D", "E", "F", "G"});
  for (const char* name : {"A", "B"}) ASSERT_EQ(PoolOfCopy(s, name), kHostPool) << name;
  ASSERT_EQ(PoolOfCopy(s, "C"), file);
  EXPECT_FALSE(s.IsCopying("D")) << "the file has room, but the host is near, and short of it";
  s.Pass(std::chrono::milliseconds(200)).Free("A").Free("B");
  EXPECT_TRUE(s.IsCopying("D"));
  EXPECT_EQ(s.View("D").away, kHostPool);
  EXPECT_TRUE(s.IsCopying("E"));
  EXPECT_EQ(s.View("E").away, file);
}

TEST(PlannerAwayTest, WhatLeavesAheadOfNeedStopsWhenTheLinkOfThePoolWithRoomIsBusy) {
  Script::Setting setting = FourPools();
  setting.capacity = KiB(16);
  setting.others.front().capacity = KiB(4);
  setting.in_flight = KiB(8);  // of which a copy ahead of need takes half
  Script s(setting);
  Fill(s, {"A", "B", "C", "D", "E"});
  ASSERT_EQ(PoolOfCopy(s, "A"), kPeer);
  s.Create("F", KiB(4)).Create("G", KiB(4));
  EXPECT_TRUE(s.IsCopying("B"));
  EXPECT_EQ(s.View("B").away, kHostPool);
  EXPECT_FALSE(s.IsCopying("C")) << "the peer's link is idle, but the peer is full";
}

TEST(PlannerAwayTest, WhatIsLargeLeavesAheadOfNeedOverAnIdleLinkThatIsNoSlower) {
  Script::Setting setting = FourPools();
  setting.capacity = KiB(16);
  setting.in_flight = KiB(4);  // of which a copy ahead of need takes half
  for (const double rate : {400e9, 7e9}) {
    setting.others = {{PoolKind::kPeer, KiB(64), 400e9, 400e9},
                      {PoolKind::kPeer, KiB(64), rate, rate}};
    Script s(setting);
    Fill(s, {"A", "B", "C", "D"});
    s.Create("E", KiB(4)).Create("F", KiB(4));
    EXPECT_TRUE(s.IsCopying("A"));
    EXPECT_EQ(s.View("A").away, kPeer);
    EXPECT_EQ(s.IsCopying("B"), rate == 400e9);
    EXPECT_FALSE(s.IsCopying("C"));
    if (s.IsCopying("B")) {
      EXPECT_EQ(s.View("B").away, PoolId{3});
    }
  }
}

TEST(PlannerAwayTest, ACopyMadeAheadOfNeedWaitsForTheLinkOfTheNearestPool) {
  Script::Setting setting = FourPools();
  setting.capacity = KiB(16);
  setting.others = {{PoolKind::kFile, KiB(64), 7e6, 5e6}};
  setting.preclean = true;
  setting.in_flight = KiB(4);  // one copy at a time over each link
  Script s(setting);
  Fill(s, {"A", "B", "C"});
  s.Pass(std::chrono::milliseconds(1));
  EXPECT_TRUE(s.IsCopying("A"));
  EXPECT_FALSE(s.IsCopying("B")) << "the file's link is idle";
  s.CopyDone("A");
  EXPECT_TRUE(s.IsCopying("B"));
  EXPECT_EQ(s.View("B").away, kHostPool);
}

TEST(PlannerAwayTest, PrefetchGoesOnOverOneLinkWhileAnotherIsBusy) {
  Script::Setting setting = FourPools();
  setting.capacity = KiB(16);
  setting.prefetch = true;
  setting.in_flight = KiB(4);  // one copy at a time over each link
  Script s(setting);
  Fill(s, {"A", "B", "C", "D", "E", "F", "G", "H"});
  for (const char* name : {"A", "B"}) ASSERT_EQ(PoolOfCopy(s, name), kPeer) << name;
  for (const char* name : {"C", "D"}) ASSERT_EQ(PoolOfCopy(s, name), kHostPool) << name;
  s.Get("H");  // its client takes tensors back
  for (const char* name : {"E", "F", "G"}) s.Free(name);
  EXPECT_TRUE(s.IsCopying("D"));
  EXPECT_FALSE(s.IsCopying("C"));
  EXPECT_TRUE(s.IsCopying("B"));
  EXPECT_FALSE(s.IsCopying("A"));
}

TEST(PlannerAwayTest, WhatLiesInAPoolThatFailsIsLostAndTheOthersServe) {
  Script s(FourPools());
  Fill(s, {"A", "B", "C", "D", "E"});
  ASSERT_EQ(PoolOfCopy(s, "A"), kPeer);
  ASSERT_EQ(PoolOfCopy(s, "B"), kPeer);
  ASSERT_EQ(PoolOfCopy(s, "C"), kHostPool);
  s.Get("B").AllCopiesDone();  // its copy there is redundant now
  s.world().FailPool(kPeer);
  s.Get("A");
  EXPECT_EQ(s.StateOf("A"), State::kLost);
  EXPECT_EQ(s.Words("A"), "they were in peer 2, which failed");
  EXPECT_EQ(s.world().planner().OtherTier(kPeer).used, Bytes(0));
  // What is on its device, or elsewhere, is as it was; and what leaves now goes elsewhere.
  EXPECT_FALSE(s.View("B").has_copy);
  s.Use("B").PutUnchanged("B", Order(1)).Get("C").AllCopiesDone().Use("C");
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
  s.PutUnchanged("C", Order(2));
  Fill(s, {"F", "G", "H"});
  for (const char* name : {"B", "C", "D", "E"}) EXPECT_NE(s.View(name).away, kPeer) << name;
}

TEST(PlannerAwayTest, AGetThatWaitsForRoomIsToldThatItsPoolFailed) {
  Script s(FourPools());
  Fill(s, {"A", "B"});
  s.Create("C", KiB(4)).AllCopiesDone().Create("D", KiB(4)).AllCopiesDone();  // fill the device
  ASSERT_EQ(PoolOfCopy(s, "A"), kPeer);
  s.Get("A");
  ASSERT_EQ(s.StateOf("A"), State::kWaiting);
  s.world().FailPool(kPeer);
  EXPECT_EQ(s.StateOf("A"), State::kLost);
}

TEST(PlannerAwayTest, CopiesUnderWayWhenTheirPoolFailsFail) {
  Script s(FourPools());
  Fill(s, {"A", "B"});
  s.Create("C", KiB(4));  // in the room that A's copy leaves
  ASSERT_TRUE(s.IsCopying("A"));
  ASSERT_EQ(s.View("A").away, kPeer);
  s.world().FailPool(kPeer);
  s.AllCopiesDone();
  EXPECT_EQ(s.StateOf("A"), State::kIdle);
  s.Pass(std::chrono::milliseconds(200)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
  const std::string left = s.StateOf("A") == State::kAway ? "A" : "B";
  EXPECT_EQ(s.StateOf(left), State::kAway);
  EXPECT_EQ(PoolOfCopy(s, left), kHostPool);
}

}  // namespace
}  // namespace ravenstore::core
