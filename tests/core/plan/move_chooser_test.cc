#include "core/plan/move_chooser.h"

#include <gtest/gtest.h>

#include <chrono>
#include <utility>
#include <vector>

namespace ravenstore::core::plan {
namespace {

using From = MapChoice::From;
using std::chrono::microseconds;

// Two pages may be held; pages 0, 1 and 2 are needed in turn, 100 us apart.
class MoveChooserTest : public testing::Test {
 protected:
  explicit MoveChooserTest(
      std::vector<CopyPool> pools = {{.capacity = MiB(2), .in_rate = 1e9, .out_rate = 1e9}})
      : limits_{.page = MiB(2), .pages = 2, .pools = std::move(pools)}, units_(8) {}
  void Plan(std::vector<UnitSnapshot> snapshot) {
    std::vector<PlannedCall> calls;
    for (Unit page = 0; page < 3; ++page) {
      const Duration at = microseconds(100 * page);
      calls.push_back({.kind = CallKind::kGet, .units = {page * 2, 1}, .at = at});
      calls.push_back({.kind = CallKind::kPut, .unpins = true, .units = {page * 2, 1}, .at = at});
    }
    plan_ = ResidencyPlan::Make(calls, snapshot, limits_);
    deadlines_.Restart(plan_);
  }
  // Unless the test says another, it has a page's bytes and a copy in the first pool.
  void Set(Unit unit, UnitState state) {
    if (state.pool == kNoPool) state.pool = 0;
    if (state.live > 0 && state.bytes == Bytes{}) state.bytes = limits_.page;
    units_[unit] = state;
    queues_.Update(unit, state, plan_);
  }
  MoveView View() const {
    return {.units = units_,
            .queues = queues_,
            .plan = plan_,
            .deadlines = deadlines_,
            .supply = supply_,
            .slot_pages = slot_pages_,
            .limits = limits_,
            .copies = copies_,
            .coming_most = MiB(4),
            .ready = ready_,
            .growth = growth_};
  }

  const PlanLimits limits_;
  std::vector<UnitState> units_;
  ResidencyPlan plan_;
  MoveQueues queues_{static_cast<PoolNumber>(limits_.pools.size())};
  Deadlines deadlines_{static_cast<PoolNumber>(limits_.pools.size())};
  PageSupply supply_;
  SlotPages slot_pages_;
  CopyPools copies_{limits_.pools, MiB(2)};
  Bytes ready_;
  ExpectedGrowth growth_;
};

TEST_F(MoveChooserTest, AUnitComesAheadOnlyIfItFitsUntilItsNeed) {
  const UnitSnapshot away{.live = 1};
  const UnitSnapshot here{.live = 1, .held = true};
  Plan({here, {}, here, {}, away, {}});
  supply_.AddUnmapped(0);
  Set(4, {.live = 1});
  EXPECT_FALSE(NextMap(View()));
  plan_.Release(MiB(2), kNoPosition);
  const auto choice = NextMap(View());
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->unit, 4u);
  EXPECT_EQ(choice->source, PageSupply::Source::kUnmapped);
  copies_.AddComing(0, MiB(4));
  EXPECT_FALSE(NextMap(View()));
  Set(4, {.demanded = true, .live = 1});  // a call waits
  EXPECT_TRUE(NextMap(View()));
}

TEST_F(MoveChooserTest, ADeadPageIsTakenUnlessItIsNeededSooner) {
  Plan({{}, {}, {.live = 1}, {}, {.live = 1}, {}});
  Set(0, {.life = PageState::kClean});  // needed at 0
  Set(2, {.live = 1});                  // at 2
  EXPECT_FALSE(NextMap(View()));
  Set(2, {.demanded = true, .live = 1});
  const auto choice = NextMap(View());
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->from, From::kDead);
  EXPECT_EQ(choice->dead, 0u);
}

TEST_F(MoveChooserTest, ASlotTakesRoomOnAPageOfItsClass) {
  Plan({});
  slot_pages_.JoinEmpty(3, 4);
  Set(1, {.demanded = true, .live = 1, .slots_per_page = 4});
  EXPECT_EQ(NextMap(View())->from, From::kSlotRoom);
  Set(1, {.demanded = true, .live = 1, .slots_per_page = 8});
  EXPECT_FALSE(NextMap(View()));
  supply_.AddStale(0);
  supply_.AddEmpty(1);
  EXPECT_EQ(NextMap(View())->source, PageSupply::Source::kEmpty);
}

// It would leave again for the call, and come again.
TEST_F(MoveChooserTest, NothingIsMappedAheadWhileACallWaitsForMemory) {
  plan_.Announce(1, 100);
  slot_pages_.JoinEmpty(3, 4);
  Set(1, {.live = 1, .slots_per_page = 4});
  EXPECT_EQ(NextMap(View())->from, From::kSlotRoom);
  Set(4, {.demanded = true});
  EXPECT_FALSE(NextMap(View()));
  Set(4, {});
  Set(2, {.demanded = true, .live = 1});
  EXPECT_FALSE(NextMap(View()));
}

TEST_F(MoveChooserTest, ALaterUnitGivesWayOnlyWhereSomethingWouldBeLate) {
  const UnitSnapshot here{.live = 1, .held = true};
  Plan({here, {}, {.live = 1}, {}, here, {}});
  plan_.Take(MiB(2), kNoPosition);
  Set(2, {.live = 1});
  Set(4, {.life = PageState::kClean, .live = 1});
  plan_.ClearLeave(4);
  queues_.Update(4, units_[4], plan_);
  deadlines_.Set(2, 2, 0, microseconds(50));
  EXPECT_FALSE(NextExchange(View()));
  deadlines_.Set(2, 2, 0, microseconds(500));
  EXPECT_EQ(NextExchange(View()), std::optional<Unit>(4));
}

TEST_F(MoveChooserTest, InAnEmergencyTheUnitThatIsNeededLastLeaves) {
  Plan({});
  EXPECT_FALSE(NextEmergency(View()));
  Set(0, {.life = PageState::kDirty, .live = 1, .last_use = 1});
  EXPECT_EQ(NextEmergency(View()), std::optional<Unit>(0));
  Set(2, {.life = PageState::kClean, .live = 1, .last_use = 2});
  EXPECT_EQ(NextEmergency(View()), std::optional<Unit>(2));  // clean: no copy is waited for
}

TEST_F(MoveChooserTest, InAnEmergencyAUnitOfLowerPriorityLeavesFirst) {
  Set(0, {.life = PageState::kClean, .live = 1, .last_use = 1});
  Set(2, {.life = PageState::kDirty, .live = 1, .last_use = 2, .priority = Priority::kLow});
  Set(4, {.life = PageState::kClean, .live = 1, .priority = Priority::kHigh});
  EXPECT_EQ(NextEmergency(View()), std::optional<Unit>(2));
  Set(2, {});
  EXPECT_EQ(NextEmergency(View()), std::optional<Unit>(0));
  Set(0, {});
  EXPECT_EQ(NextEmergency(View()), std::optional<Unit>(4));
}

TEST_F(MoveChooserTest, AUnitDoesNotGiveWayForOneOfLowerPriority) {
  plan_.Announce(0, 300);
  plan_.Announce(2, 100);
  Set(0, {.life = PageState::kClean, .live = 1});
  Set(2, {.live = 1, .priority = Priority::kLow});
  EXPECT_FALSE(NextExchange(View()));
  Set(2, {.live = 1});
  EXPECT_EQ(NextExchange(View()), std::optional<Unit>(0));
}

TEST_F(MoveChooserTest, WithoutAPlanAUnitTakesThePlaceOfOneThatIsNeededLater) {
  plan_.Announce(0, 100);
  plan_.Announce(2, 300);
  plan_.Announce(4, 200);
  Set(0, {.life = PageState::kClean, .live = 1});
  Set(2, {.life = PageState::kClean, .live = 1});
  Set(4, {.live = 1});
  EXPECT_FALSE(NextMap(View()));
  EXPECT_EQ(NextExchange(View()), std::optional<Unit>(2));
  plan_.Announce(2, kNoPosition);
  Set(2, {});  // it has left
  EXPECT_FALSE(NextExchange(View()));
  supply_.AddUnmapped(0);
  ASSERT_TRUE(NextMap(View()));
  EXPECT_EQ(NextMap(View())->unit, 4u);
  growth_ = {.bytes = MiB(4), .from = 0, .until = 1000};
  EXPECT_FALSE(NextMap(View()));  // what is created before needs the page
}

TEST_F(MoveChooserTest, WithoutAPlanWhatIsNeededLastIsCopiedAheadOfCreates) {
  plan_.Announce(0, 1000);
  plan_.Announce(2, 3000);
  Set(0, {.life = PageState::kDirty, .live = 1});
  Set(2, {.life = PageState::kDirty, .live = 1});
  EXPECT_FALSE(NextOut(View(), 0));  // nothing is created
  growth_ = {.bytes = MiB(2), .from = 0, .until = 500};
  EXPECT_EQ(NextOut(View(), 0), std::optional<Unit>(2));
  // A copy ahead drops no other copy: two units would take turns for ever.
  copies_.Add(0, MiB(2));
  copies_.AddRedundant(0, MiB(2));
  EXPECT_FALSE(NextOut(View(), 0));
  copies_.RemoveRedundant(0, MiB(2));
  copies_.Remove(0, MiB(2));
  ready_ = MiB(2);
  EXPECT_FALSE(NextOut(View(), 0));
  ready_ = {};
  growth_.until = 4000;  // all is needed before that
  EXPECT_FALSE(NextOut(View(), 0));
}

TEST_F(MoveChooserTest, WhereAPageHasNoRoomASmallerUnitLeaves) {
  plan_.Announce(0, 300);
  plan_.Announce(1, 200);
  plan_.Announce(3, 250);
  copies_.Add(0, MiB(1));
  Set(0, {.life = PageState::kDirty, .live = 1});
  EXPECT_FALSE(NextEmergency(View()));
  EXPECT_EQ(LackedCopyRoom(View()), std::optional(MiB(2)));
  Set(1, {.life = PageState::kDirty, .live = 1, .slots_per_page = 4, .bytes = KiB(512)});
  EXPECT_EQ(NextEmergency(View()), std::optional<Unit>(1));
  EXPECT_FALSE(LackedCopyRoom(View()));
  Set(3, {.life = PageState::kDirty, .live = 1, .slots_per_page = 4, .bytes = KiB(512)});
  EXPECT_EQ(NextEmergency(View()), std::optional<Unit>(3)) << "it is needed later";
  // The page leaves, and waits for room; a slot leaves too.
  Set(0, {.life = PageState::kDirty, .forced = true, .live = 1});
  EXPECT_FALSE(NextOut(View(), 0));
  EXPECT_EQ(LeavingNow(View()), 0u);
  EXPECT_EQ(LackedCopyRoom(View()), std::optional(MiB(2))) << "no other leaves in its place";
  Set(3, {.life = PageState::kDirty, .forced = true, .live = 1, .bytes = KiB(512)});
  EXPECT_EQ(NextOut(View(), 0), std::optional<Unit>(3));
  EXPECT_EQ(LeavingNow(View()), 2u);
  copies_.Add(0, MiB(1));
  EXPECT_FALSE(NextOut(View(), 0));
  EXPECT_EQ(LackedCopyRoom(View()), std::optional(MiB(2)));
}

TEST_F(MoveChooserTest, WithoutAPlanACleanUnitLeavesIfItIsNeededHalfAsLate) {
  growth_.from = 100;
  plan_.Announce(0, 1100);
  plan_.Announce(2, 700);
  Set(0, {.life = PageState::kDirty, .live = 1});
  Set(2, {.life = PageState::kClean, .live = 1});
  EXPECT_EQ(NextEmergency(View()), std::optional<Unit>(2));
  plan_.Announce(0, 1400);
  Set(0, {.life = PageState::kDirty, .live = 1});
  EXPECT_EQ(NextEmergency(View()), std::optional<Unit>(0));
}

// Of the pool's two pages one is kept for exchanges.
class KeptRoomTest : public MoveChooserTest {
 protected:
  KeptRoomTest() : MoveChooserTest({{.capacity = MiB(4), .kept = MiB(2)}}) {}
};

TEST_F(KeptRoomTest, AUnitLeavesForACreateOnlyIfTheKeptRoomStays) {
  Set(0, {.life = PageState::kDirty, .live = 1});
  EXPECT_EQ(NextEmergency(View()), std::optional<Unit>(0));
  copies_.Add(0, MiB(2));
  EXPECT_FALSE(NextEmergency(View()));
  EXPECT_EQ(LackedCopyRoom(View()), std::optional(MiB(2)));
  copies_.AddRedundant(0, MiB(2));
  EXPECT_EQ(NextEmergency(View()), std::optional<Unit>(0));
  copies_.Add(0, MiB(2));
  Set(0, {});
  Set(2, {.life = PageState::kClean, .live = 1});  // without it its copy would be needed
  EXPECT_FALSE(NextEmergency(View()));
  EXPECT_EQ(LackedCopyRoom(View()), std::optional(MiB(2)));
}

TEST_F(KeptRoomTest, TheUnitThatWasUsedLastReturnsToAFreePage) {
  copies_.Add(0, MiB(4));
  Set(0, {.live = 1, .last_use = 1});
  Set(2, {.live = 1, .last_use = 2});
  EXPECT_FALSE(NextReturn(View(), 0)) << "no page is free";
  supply_.AddUnmapped(0);
  EXPECT_EQ(NextReturn(View(), 0), std::optional<Unit>(2));
  Set(0, {.demanded = true, .live = 1});
  EXPECT_TRUE(AwaitsReturn(View()));
  EXPECT_FALSE(NextReturn(View(), 0)) << "the page is for the unit that a call waits for";
}

// A page of the nearer pool is kept for exchanges, and no more is free there.
class KeptRoomOfTwoPoolsTest : public MoveChooserTest {
 protected:
  KeptRoomOfTwoPoolsTest()
      : MoveChooserTest({{.capacity = MiB(4), .kept = MiB(2)}, {.capacity = MiB(4)}}) {
    copies_.Add(0, MiB(2));
  }
};

TEST_F(KeptRoomOfTwoPoolsTest, ACleanUnitOfTheOtherPoolLeavesForACreate) {
  // It would leave first.
  Set(0, {.life = PageState::kClean, .live = 1, .pool = 0, .last_use = 1});
  copies_.AddRedundant(0, MiB(2));
  copies_.Add(0, MiB(2));
  EXPECT_FALSE(NextEmergency(View()));
  for (const Unit unit : {2u, 4u})
    Set(unit, {.life = PageState::kClean, .live = 1, .pool = 1, .last_use = unit});
  EXPECT_EQ(NextEmergency(View()), std::optional<Unit>(2));
}

TEST_F(KeptRoomOfTwoPoolsTest, UnitsLeaveForTheOtherPool) {
  Set(0, {.life = PageState::kDirty, .forced = true, .live = 1});
  EXPECT_FALSE(NextOut(View(), 0));
  EXPECT_EQ(NextOut(View(), 1), std::optional<Unit>(0));
  copies_.Add(1, MiB(4));
  EXPECT_EQ(NextOut(View(), 0), std::optional<Unit>(0)) << "no other room is left";
}

TEST_F(KeptRoomOfTwoPoolsTest, UnitsThatStayAreCopiedToTheOtherPool) {
  growth_ = {.bytes = MiB(2), .until = 4};
  Set(0, {.life = PageState::kDirty, .live = 1});
  EXPECT_FALSE(NextOut(View(), 0));
  EXPECT_EQ(NextOut(View(), 1), std::optional<Unit>(0));
}

class UsedReserveTest : public MoveChooserTest {
 protected:
  UsedReserveTest() : MoveChooserTest({{.capacity = MiB(2), .may_create = false}}) {}
};

TEST_F(UsedReserveTest, NoPageIsCreatedWhileAnExchangeUsesTheKeptRoom) {
  supply_.AddUnmapped(0);
  copies_.Add(0, MiB(2));
  Set(2, {.demanded = true});
  EXPECT_TRUE(AwaitsCreation(View()));
  EXPECT_FALSE(NextMap(View()));
  EXPECT_FALSE(FirstLack(View()));
  EXPECT_EQ(LastSpare(View()), std::optional(kNoPosition)) << "its page is for others";
  Set(0, {.demanded = true, .live = 1});
  ASSERT_TRUE(NextMap(View()));
  EXPECT_EQ(NextMap(View())->unit, 0u);
}

// A page each; the first is nearer.
class TwoPoolsTest : public MoveChooserTest {
 protected:
  TwoPoolsTest()
      : MoveChooserTest({{.capacity = MiB(2), .in_rate = 1e9, .out_rate = 1e9},
                         {.capacity = MiB(2), .in_rate = 1e8, .out_rate = 1e8}}) {}
};

TEST_F(TwoPoolsTest, AUnitLeavesForTheNearestPoolWithRoom) {
  Plan({});
  Set(0, {.life = PageState::kDirty, .forced = true, .live = 1});
  EXPECT_EQ(NextOut(View(), 0), std::optional<Unit>(0));
  EXPECT_FALSE(NextOut(View(), 1));
  copies_.Add(0, MiB(2));
  EXPECT_FALSE(NextOut(View(), 0));
  EXPECT_EQ(NextOut(View(), 1), std::optional<Unit>(0));
}

TEST_F(TwoPoolsTest, AUnitLeavesForThePoolOfThePlan) {
  // Page 0, needed last, leaves for page 2, then page 1 for page 3.
  std::vector<PlannedCall> calls;
  for (const Unit page : {2u, 3u})
    calls.push_back({.kind = CallKind::kGet, .units = {page * 2, 1}});
  for (const Unit page : {2u, 3u})
    calls.push_back(
        {.kind = CallKind::kFree, .unpins = true, .dies = true, .units = {page * 2, 1}});
  for (const Unit page : {1u, 0u}) {
    calls.push_back({.kind = CallKind::kGet, .units = {page * 2, 1}});
    calls.push_back({.kind = CallKind::kPut, .unpins = true, .units = {page * 2, 1}});
  }
  const UnitSnapshot dirty{.live = 1, .held = true, .dirty = true};
  const UnitSnapshot away{.live = 1, .pool = 1};
  const PlanLimits limits{.page = MiB(2),
                          .pages = 2,
                          .pools = {{.capacity = MiB(2), .in_rate = 1e9, .out_rate = 1e9},
                                    {.capacity = MiB(6), .in_rate = 1e8, .out_rate = 1e8}}};
  plan_ = ResidencyPlan::Make(
      calls, std::vector<UnitSnapshot>{dirty, {}, dirty, {}, away, {}, away}, limits);
  EXPECT_EQ(plan_.PoolOf(0), 0);
  EXPECT_EQ(plan_.PoolOf(2), 1);
  Set(0, {.life = PageState::kDirty, .live = 1});
  Set(2, {.life = PageState::kDirty, .live = 1});
  EXPECT_EQ(NextOut(View(), 0), std::optional<Unit>(0));
  EXPECT_EQ(NextOut(View(), 1), std::optional<Unit>(2));
  copies_.Add(0, MiB(2));  // by others: the second pool takes both, in the plan's order
  EXPECT_FALSE(NextOut(View(), 0));
  EXPECT_EQ(NextOut(View(), 1), std::optional<Unit>(0));
  Set(0, {.life = PageState::kLeaving, .live = 1});
  EXPECT_EQ(NextOut(View(), 1), std::optional<Unit>(2));
}

TEST_F(TwoPoolsTest, UnitsComeFromEachPoolAtTheSameTime) {
  plan_.Announce(0, 1);
  plan_.Announce(2, 2);
  supply_.AddUnmapped(0);
  supply_.AddUnmapped(1);
  Set(0, {.live = 1, .pool = 1});
  Set(2, {.live = 1, .pool = 0});
  EXPECT_EQ(NextMap(View())->unit, 0u);
  copies_.AddComing(1, MiB(4));  // from the slow pool nothing more may come ahead
  EXPECT_EQ(NextMap(View())->unit, 2u);
  Set(0, {.life = PageState::kQueued, .live = 1, .pool = 1});
  EXPECT_FALSE(NextIn(View(), 0));
  EXPECT_EQ(NextIn(View(), 1), std::optional<Unit>(0));
}

}  // namespace
}  // namespace ravenstore::core::plan
