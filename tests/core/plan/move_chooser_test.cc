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
  MoveChooserTest() : units_(8) {}
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
  void Set(Unit unit, const UnitState& state) {
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
            .coming = coming_,
            .coming_most = MiB(4),
            .can_copy_ahead = can_copy_ahead_,
            .ready = ready_,
            .growth = growth_};
  }

  const PlanLimits limits_{.page = MiB(2), .pages = 2, .out_bytes_per_second = 1e9};
  std::vector<UnitState> units_;
  ResidencyPlan plan_;
  MoveQueues queues_;
  Deadlines deadlines_;
  PageSupply supply_;
  SlotPages slot_pages_;
  Bytes coming_;
  Bytes ready_;
  ExpectedGrowth growth_;
  bool can_copy_ahead_ = true;
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
  coming_ = MiB(4);
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
  deadlines_.Set(2, 2, microseconds(50));
  EXPECT_FALSE(NextExchange(View()));
  deadlines_.Set(2, 2, microseconds(500));
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
  EXPECT_FALSE(NextOut(View()));  // nothing is created
  growth_ = {.bytes = MiB(2), .from = 0, .until = 500};
  EXPECT_EQ(NextOut(View()), std::optional<Unit>(2));
  // A copy ahead drops no other copy: two units would take turns for ever.
  can_copy_ahead_ = false;
  EXPECT_FALSE(NextOut(View()));
  can_copy_ahead_ = true;
  ready_ = MiB(2);
  EXPECT_FALSE(NextOut(View()));
  ready_ = {};
  growth_.until = 4000;  // all is needed before that
  EXPECT_FALSE(NextOut(View()));
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

}  // namespace
}  // namespace ravenstore::core::plan
