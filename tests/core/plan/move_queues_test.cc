#include "core/plan/move_queues.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::core::plan {
namespace {

using Queue = MoveQueues::Queue;

// Page 1 is needed at 0, page 2 at 2, page 0 at 4; one page may be held.
class MoveQueuesTest : public testing::Test {
 protected:
  MoveQueuesTest() {
    std::vector<PlannedCall> calls;
    for (const Unit page : {1u, 2u, 0u}) {
      calls.push_back({.kind = CallKind::kGet, .units = {page * 2, 1}});
      calls.push_back({.kind = CallKind::kPut, .unpins = true, .units = {page * 2, 1}});
    }
    std::vector<UnitSnapshot> units(6);
    units[0] = {.live = 1, .held = true, .dirty = true};
    units[2] = units[4] = {.live = 1};
    plan_ = ResidencyPlan::Make(calls, units,
                                {.page = MiB(2), .pages = 1, .pools = {{.out_rate = 1e9}}});
  }
  // A unit with tensors has its copy, if there is one, in the only pool.
  void Update(Unit unit, UnitState state) {
    state.pool = 0;
    queues_.Update(unit, state, plan_);
  }
  Unit First(Queue queue) {
    const auto next = queues_.First(queue);
    return next ? next->unit : 99;
  }

  ResidencyPlan plan_;
  MoveQueues queues_;
};

TEST_F(MoveQueuesTest, UnitsThatAreAwayComeByTheirNeed) {
  Update(4, {.live = 1});
  Update(2, {.live = 1});
  EXPECT_EQ(First(Queue::kComes), 2u);
  Update(4, {.demanded = true, .live = 1});
  EXPECT_EQ(First(Queue::kComes), 4u);
  EXPECT_EQ(queues_.First(Queue::kComes)->need, MoveQueues::kWaitedFor);
  Update(4, {.life = PageState::kMapping, .live = 1});
  EXPECT_EQ(queues_.size(Queue::kComes), 1u);
}

TEST_F(MoveQueuesTest, APlannedUnitLeavesOrIsDropped) {
  Update(0, {.life = PageState::kDirty, .live = 1});
  EXPECT_EQ(First(Queue::kLeaves), 0u);
  EXPECT_EQ(First(Queue::kIdleDirty), 99u);
  Update(0, {.life = PageState::kLeaving, .live = 1});
  EXPECT_TRUE(queues_.IsEmpty(Queue::kLeaves));
  Update(0, {.life = PageState::kClean, .live = 1});
  EXPECT_EQ(First(Queue::kDrops), 0u);
  Update(0, {.life = PageState::kClean, .pins = 1, .live = 1});
  EXPECT_TRUE(queues_.IsEmpty(Queue::kDrops));
}

TEST_F(MoveQueuesTest, IdleUnitsAreByNeedThenByRecency) {
  Update(2, {.life = PageState::kClean, .live = 1, .last_use = 9});
  Update(4, {.life = PageState::kClean, .live = 1, .last_use = 8});
  EXPECT_EQ(First(Queue::kIdleClean), 4u);
  // No call of the plan needs these.
  Update(6, {.life = PageState::kClean, .live = 1, .last_use = 7});
  Update(8, {.life = PageState::kClean, .live = 1, .last_use = 6});
  EXPECT_EQ(First(Queue::kIdleClean), 8u);
}

TEST_F(MoveQueuesTest, WithoutAPlanIdleUnitsAreByWorthThenByRecency) {
  const UnitState often{.life = PageState::kClean, .live = 1, .last_use = 6, .worth = 3};
  const UnitState rarely{.life = PageState::kClean, .live = 1, .last_use = 8, .worth = 2};
  UnitState longest = rarely;
  longest.last_use = 7;
  for (const bool planned : {true, false}) {
    if (!planned) plan_ = {};
    Update(6, rarely);
    Update(8, often);
    EXPECT_EQ(First(Queue::kIdleClean), planned ? 8u : 6u);
    Update(10, longest);
    EXPECT_EQ(First(Queue::kIdleClean), planned ? 8u : 10u);
    Update(10, {});
  }
}

TEST_F(MoveQueuesTest, AnnouncedNeedsComeBeforeWorth) {
  plan_ = {};
  plan_.Announce(6, 5);
  plan_.Announce(8, 9);
  Update(6, {.life = PageState::kClean, .live = 1, .worth = 1});
  Update(8, {.life = PageState::kClean, .live = 1, .worth = 7});
  EXPECT_EQ(First(Queue::kIdleClean), 8u);
}

TEST_F(MoveQueuesTest, AnEmptyPageIsDeadOrBorn) {
  Update(2, {.life = PageState::kClean});
  Update(6, {.life = PageState::kClean});
  EXPECT_EQ(First(Queue::kDead), 6u);
  Update(4, {});
  EXPECT_EQ(First(Queue::kBorn), 4u);
  Update(4, {.life = PageState::kQueued, .live = 1});
  EXPECT_EQ(First(Queue::kArrives), 4u);
}

}  // namespace
}  // namespace ravenstore::core::plan
