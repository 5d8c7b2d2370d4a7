#include "core/plan/move_queues.h"

#include <gtest/gtest.h>

#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "tests/core/plan/seeds.h"

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
  EXPECT_EQ(First(Queue::kReturns), 2u);
  Update(4, {.demanded = true, .live = 1});
  EXPECT_EQ(First(Queue::kReturns), 4u);
  EXPECT_EQ(queues_.First(Queue::kReturns)->need, MoveQueues::kWaitedFor);
  Update(4, {.life = PageState::kMapping, .live = 1});
  EXPECT_EQ(queues_.size(Queue::kReturns), 1u);
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

TEST_F(MoveQueuesTest, CleanIdleUnitsAreFoundByTheirPoolAndSize) {
  MoveQueues queues(2);
  const ResidencyPlan none;
  const auto add = [&](Unit unit, PoolNumber pool, Bytes bytes) {
    queues.Update(
        unit,
        {.life = PageState::kClean, .live = 1, .pool = pool, .bytes = bytes, .last_use = unit + 1},
        none);
  };
  for (const Unit unit : {0u, 2u, 4u}) add(unit, 0, MiB(2));
  add(6, 1, MiB(2));
  add(8, 0, MiB(1));
  EXPECT_EQ(queues.First(Queue::kIdleClean)->unit, 0u);
  EXPECT_EQ(queues.First(Queue::kIdleClean, 1)->unit, 6u);
  const auto small = [](Unit unit) { return unit == 8; };
  EXPECT_EQ(queues.FirstOfAll(Queue::kIdleClean, small)->unit, 8u);
  const auto others = [](Unit unit) { return unit == 6 || unit == 8; };
  EXPECT_EQ(queues.FirstOfAll(Queue::kIdleClean, others)->unit, 6u);
  add(6, 0, MiB(2));  // its copy is in the other pool now
  EXPECT_FALSE(queues.First(Queue::kIdleClean, 1));
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

TEST_F(MoveQueuesTest, AnEmptyPageIsDeadOrCreated) {
  Update(2, {.life = PageState::kClean});
  Update(6, {.life = PageState::kClean});
  EXPECT_EQ(First(Queue::kDead), 6u);
  Update(4, {});
  EXPECT_EQ(First(Queue::kCreated), 4u);
  Update(4, {.life = PageState::kQueued, .live = 1});
  EXPECT_EQ(First(Queue::kArrives), 4u);
}

// Dirty units of up to 2 MiB each, which are idle or leave.
class SizedUnits {
 public:
  void Add(Bytes bytes, bool leaves) {
    const auto unit = static_cast<Unit>(bytes_.size());
    bytes_.push_back(bytes);
    const UnitState state{.life = PageState::kDirty,
                          .forced = leaves,
                          .live = 1,
                          .bytes = bytes,
                          .last_use = unit + uint64_t{1}};
    queues_.Update(unit, state, {});
  }
  std::optional<Unit> FirstUpTo(Bytes room, Queue queue) {
    const auto next = queues_.First(queue, kNoPool, [&](Unit unit) {
      ++looks_;
      return bytes_[unit] <= room;
    });
    return next ? std::optional(next->unit) : std::nullopt;
  }
  Bytes operator[](Unit unit) const { return bytes_[unit]; }
  int TakeLooks() { return std::exchange(looks_, 0); }

 private:
  std::vector<Bytes> bytes_;
  MoveQueues queues_;
  int looks_ = 0;
};

// Calls that wait for memory search at each event where no pool has room for a page.
TEST_F(MoveQueuesTest, ASearchAmongManyUnitsLooksAtFew) {
  constexpr int kSizeClasses = 12;  // of 1 KiB to 2 MiB
  Random random(1);
  for (const bool leaves : {false, true}) {
    for (const Unit count : {1000u, 100000u}) {
      SizedUnits units;
      for (Unit i = 0; i < count; ++i) {
        const Bytes more = KiB(1) + Bytes(1 + random.Below(MiB(1).count()));
        units.Add(i == count / 2 ? KiB(1) : more, leaves);
      }
      for (const Bytes room : {Bytes(1023), KiB(1), KiB(3), MiB(1)}) {
        const auto first = units.FirstUpTo(room, leaves ? Queue::kLeaves : Queue::kIdleDirty);
        EXPECT_EQ(first.has_value(), room >= KiB(1));
        EXPECT_LE(units.TakeLooks(), 2 * kSizeClasses);
      }
    }
  }
}

TEST_F(MoveQueuesTest, AUnitThatFitsIsFoundIfThereIsOne) {
  ForSeeds(300, [](Random& random) {
    SizedUnits units;
    const auto count = static_cast<Unit>(1 + random.Below(20));
    for (Unit i = 0; i < count; ++i) units.Add(Bytes(1 + random.Below(64)), false);
    for (uint64_t room = 0; room <= 64; ++room) {
      const auto found = units.FirstUpTo(Bytes(room), Queue::kIdleDirty);
      std::optional<Unit> first;
      for (Unit unit = count; unit-- > 0;) {
        if (units[unit] <= Bytes(room)) first = unit;
      }
      ASSERT_EQ(found.has_value(), first.has_value());
      if (!found) continue;
      EXPECT_LE(units[*found], Bytes(room));
      // Classes that fit as a whole are in their order.
      if (std::has_single_bit(room + 1)) {
        EXPECT_EQ(*found, *first);
      }
    }
  });
}

TEST_F(MoveQueuesTest, AUnitThatBecomesSmallerChangesItsSizeClass) {
  MoveQueues queues;
  UnitState state{.life = PageState::kDirty, .live = 2, .bytes = MiB(2)};
  queues.Update(0, state, {});
  state.last_use = 1;
  queues.Update(2, state, {});
  state.bytes = KiB(4);
  queues.Update(2, state, {});
  const auto small = [](Unit unit) { return unit == 2; };
  EXPECT_EQ(queues.First(Queue::kIdleDirty, kNoPool, small)->unit, 2u);
  EXPECT_EQ(queues.First(Queue::kIdleDirty)->unit, 0u);
  queues.Update(0, {}, {});
  EXPECT_EQ(queues.First(Queue::kIdleDirty)->unit, 2u);
  EXPECT_EQ(queues.size(Queue::kIdleDirty), 1u);
}

}  // namespace
}  // namespace ravenstore::core::plan
