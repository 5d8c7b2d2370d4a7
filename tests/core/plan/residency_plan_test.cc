#include "core/plan/residency_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <vector>

#include "tests/core/plan/programs.h"
#include "tests/core/plan/reference_plan.h"
#include "tests/core/plan/seeds.h"

namespace ravenstore::core::plan {
namespace {

using std::chrono::microseconds;

// 2 MiB take 100 us.
const PlanLimits kTwoPages{
    .page = MiB(2), .pages = 2, .pools = {{.out_rate = 2.0 * (1 << 20) * 1e4}}};

PlannedCall Get(Unit page, int us) {
  return {.kind = CallKind::kGet, .units = {page * 2, 1}, .at = microseconds(us)};
}
PlannedCall Put(Unit page, int us, bool modifies = false) {
  return {.kind = CallKind::kPut,
          .unpins = true,
          .modifies = modifies,
          .units = {page * 2, 1},
          .at = microseconds(us)};
}
UnitSnapshot Resident(bool dirty) {
  return {.live = 1, .held = true, .dirty = dirty};
}
UnitSnapshot Away() {
  return {.live = 1};
}
// By page; slots are none.
std::vector<UnitSnapshot> Pages(std::vector<UnitSnapshot> pages) {
  std::vector<UnitSnapshot> units;
  for (const UnitSnapshot& page : pages) {
    units.push_back(page);
    units.emplace_back();
  }
  return units;
}

TEST(ResidencyPlanTest, NothingIsKnownWithoutCalls) {
  ResidencyPlan plan;
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.NextNeed(4), kNoPosition);
  EXPECT_EQ(plan.LeavesAt(4), kNoPosition);
  plan = ResidencyPlan::Make({}, Pages({Resident(false)}), kTwoPages);
  EXPECT_EQ(plan.NextNeed(0), kNoPosition);
}

TEST(ResidencyPlanTest, TheUnitThatIsNeededLastLeaves) {
  const std::vector<PlannedCall> calls = {Get(2, 0), Put(2, 10), Get(0, 20), Put(0, 30),
                                          Get(1, 40)};
  const ResidencyPlan plan =
      ResidencyPlan::Make(calls, Pages({Resident(false), Resident(false), Away()}), kTwoPages);
  EXPECT_EQ(plan.LeavesAt(0), kNoPosition);
  EXPECT_EQ(plan.LeavesAt(2), 0);
  EXPECT_EQ(plan.NextNeed(2), 4);
}

TEST(ResidencyPlanTest, AUnitOfLowerPriorityLeavesThoughItIsNeededFirst) {
  const std::vector<PlannedCall> calls = {Get(2, 10), Put(2, 20), Get(0, 80), Put(0, 90),
                                          Get(1, 100)};
  UnitSnapshot low = Resident(true);
  low.priority = Priority::kLow;
  const ResidencyPlan plan =
      ResidencyPlan::Make(calls, Pages({low, Resident(false), Away()}), kTwoPages);
  EXPECT_EQ(plan.LeavesAt(0), 0);
  UnitSnapshot high = Resident(false);
  high.priority = Priority::kHigh;
  const ResidencyPlan other =
      ResidencyPlan::Make(calls, Pages({Resident(false), high, Away()}), kTwoPages);
  EXPECT_EQ(other.LeavesAt(0), 0);
  EXPECT_EQ(other.LeavesAt(2), kNoPosition);
}

TEST(ResidencyPlanTest, OneThatIsOutInTimeLeavesBeforeOneThatIsNotIfItIsNeededHalfAsLate) {
  const std::vector<PlannedCall> calls = {Get(2, 10), Put(2, 20), Get(0, 80), Put(0, 90),
                                          Get(1, 100)};
  // Page 1 is dirty; copying it takes until 100 us.
  const ResidencyPlan plan =
      ResidencyPlan::Make(calls, Pages({Resident(false), Resident(true), Away()}), kTwoPages);
  EXPECT_EQ(plan.LeavesAt(0), 0);
  EXPECT_EQ(plan.LeavesAt(2), kNoPosition);  // page 2 leaves, which no call needs again
  const std::vector<PlannedCall> sooner = {Get(2, 10), Put(2, 20), Get(0, 40), Put(0, 50),
                                           Get(1, 100)};
  const ResidencyPlan other =
      ResidencyPlan::Make(sooner, Pages({Resident(false), Resident(true), Away()}), kTwoPages);
  EXPECT_EQ(other.LeavesAt(0), kNoPosition);
  EXPECT_EQ(other.LeavesAt(2), 0);
}

// A forecast can be wrong: the tensor that is to die is dead already.
TEST(ResidencyPlanTest, ATensorDiesOnce) {
  PlannedCall last = Put(0, 10);
  last.dies = true;
  const std::vector<PlannedCall> calls = {last, Get(1, 20), Get(2, 30)};
  const UnitSnapshot in_use = {.pins = 1, .held = true, .pool = kNoPool};
  const ResidencyPlan plan = ResidencyPlan::Make(calls, Pages({in_use, Away(), Away()}), kTwoPages);
  EXPECT_EQ(plan.LeavesAt(0), kNoPosition);
  EXPECT_EQ(plan.over_budget(), 0u);
  EXPECT_EQ(plan.SlackAt(1), int64_t(MiB(2).count()) * 2);
}

TEST(ResidencyPlanTest, SlackIsWhatStaysFree) {
  const std::vector<PlannedCall> calls = {Get(1, 0), Put(1, 10)};
  ResidencyPlan plan = ResidencyPlan::Make(calls, Pages({Resident(false), Away()}), kTwoPages);
  EXPECT_EQ(plan.SlackAt(0), int64_t(MiB(2).count()));
  EXPECT_EQ(plan.SlackAt(1), 0);
  EXPECT_TRUE(plan.Fits(MiB(2), 0));
  EXPECT_FALSE(plan.Fits(MiB(2), 1));
  plan.Release(MiB(2), 2);
  EXPECT_TRUE(plan.Fits(MiB(2), kNoPosition));
  plan.Take(MiB(1), 0);
  EXPECT_FALSE(plan.Fits(MiB(4), 0));
}

TEST(ResidencyPlanTest, APositionPassesItsNeeds) {
  const std::vector<PlannedCall> calls = {Get(0, 0), Put(0, 10), Get(0, 20), Put(0, 30)};
  ResidencyPlan plan = ResidencyPlan::Make(calls, Pages({Resident(false)}), kTwoPages);
  std::vector<Unit> passed;
  EXPECT_EQ(plan.NextNeed(0), 0);
  plan.MoveTo(1, &passed);
  EXPECT_EQ(plan.NextNeed(0), 2);
  EXPECT_EQ(passed, std::vector<Unit>{0});
  plan.MoveTo(99, &passed);
  EXPECT_EQ(plan.position(), 4);
  EXPECT_EQ(plan.NextNeed(0), kNoPosition);
}

TEST(ResidencyPlanTest, WithoutCallsOnlyAnnouncedNeedsAreKnown) {
  ResidencyPlan plan;
  EXPECT_EQ(plan.NextNeed(8), kNoPosition);
  plan.Announce(8, 2);
  EXPECT_EQ(plan.NextNeed(8), 2);
  plan.Announce(8, 5);  // the last one counts
  EXPECT_EQ(plan.NextNeed(8), 5);
  plan.Announce(8, kNoPosition);
  EXPECT_EQ(plan.NextNeed(8), kNoPosition);
}

TEST(ResidencyPlanTest, AnOverdueNeedMustFitNow) {
  const std::vector<PlannedCall> calls = {Get(0, 0), Get(1, 10), Put(1, 20)};
  ResidencyPlan plan = ResidencyPlan::Make(calls, Pages({Away(), Away()}), kTwoPages);
  std::vector<Unit> passed;
  EXPECT_TRUE(plan.Fits(MiB(2), 1));
  plan.MoveTo(2, &passed);
  EXPECT_FALSE(plan.Fits(MiB(2), 1));
  EXPECT_FALSE(plan.Fits(MiB(2), 0));
}

TEST(ResidencyPlanTest, SlotsOccupyWholePages) {
  // Two size classes: each holds a page, though its slots take less.
  std::vector<UnitSnapshot> units(4);
  units[1] = {.live = 1, .held = true, .slots_per_page = 2};
  units[3] = {.live = 1, .held = true, .slots_per_page = 4};
  const std::vector<PlannedCall> calls = {Get(0, 0), Put(0, 10)};
  PlanLimits limits = kTwoPages;
  limits.pages = 3;
  const ResidencyPlan plan = ResidencyPlan::Make(calls, units, limits);
  EXPECT_TRUE(plan.Fits(MiB(2), 0));
  EXPECT_FALSE(plan.Fits(MiB(4), 0));
  EXPECT_FALSE(plan.Fits(MiB(2), 1));
}

TEST(ResidencyPlanTest, WhatIsInUseStaysThoughItExceedsThePages) {
  const std::vector<PlannedCall> calls = {Get(0, 0), Get(1, 1), Get(2, 2), Put(0, 3), Put(1, 4)};
  const ResidencyPlan plan = ResidencyPlan::Make(calls, Pages({Away(), Away(), Away()}), kTwoPages);
  EXPECT_EQ(plan.over_budget(), 1u);
  EXPECT_EQ(plan.SlackAt(3), -int64_t(MiB(2).count()));
  EXPECT_EQ(plan.SlackAt(4), 0);
}

std::set<ReferencePlan::Departure> DeparturesOf(const ResidencyPlan& plan, size_t units) {
  std::set<ReferencePlan::Departure> departures;
  for (Unit unit = 0; unit < units; ++unit) {
    for (const ResidencyPlan::Gap& gap : plan.GapsOf(unit)) {
      if (gap.leaves != kNoPosition) departures.insert({gap.leaves, unit});
    }
  }
  return departures;
}

// A program of which the first calls are made; the rest is to be planned.
struct RandomPlan {
  explicit RandomPlan(Random* random) {
    const RandomProgram program(random, 20 + random->Below(150), random->OneIn(2));
    const size_t begin = random->Below(program.calls().size());
    units = SnapshotAfter(program.calls(), begin, random);
    calls.assign(program.calls().begin() + static_cast<ptrdiff_t>(begin), program.calls().end());
    limits = {.page = MiB(2),
              .pages = program.RandomBudget(),
              .pools = {{.out_rate = 1e9 * static_cast<double>(1 + random->Below(50)),
                         .per_copy = microseconds(2)}}};
  }
  ResidencyPlan Make() const { return ResidencyPlan::Make(calls, units, limits); }

  std::vector<UnitSnapshot> units;
  std::vector<PlannedCall> calls;
  PlanLimits limits;
};

TEST(ResidencyPlanTest, EqualsTheReferenceOnRandomPrograms) {
  size_t evicting = 0;
  ForSeeds(300, [&evicting](Random& random) {
    const RandomPlan made(&random);
    const ResidencyPlan plan = made.Make();
    const ReferencePlan reference(made.calls, made.units, made.limits);
    EXPECT_EQ(DeparturesOf(plan, made.units.size()), reference.departures());
    EXPECT_EQ(plan.over_budget(), reference.over_budget());
    for (Position i = 0; i <= plan.horizon(); ++i)
      ASSERT_EQ(plan.SlackAt(i), reference.slack()[static_cast<size_t>(i)]) << i;
    // A departure for each ten calls that are planned.
    evicting += reference.departures().size() * 10 >= made.calls.size() ? 1 : 0;
  });
  EXPECT_GE(evicting, 150u);
}

// What a plan must answer at a position, by a search of all calls.
class ReferencePosition {
 public:
  ReferencePosition(const RandomPlan& made, const ResidencyPlan& plan) : made_(made) {
    for (Position i = 0; i <= plan.horizon(); ++i) slack_.push_back(plan.SlackAt(i));
  }
  void MoveTo(Position position) { position_ = std::min(position, horizon()); }
  void Add(int64_t bytes, Position until) {
    for (Position i = position_; i <= Last(until); ++i) slack_[static_cast<size_t>(i)] += bytes;
  }
  bool Fits(int64_t bytes, Position need) const {
    const auto begin = slack_.begin();
    return *std::min_element(begin + position_, begin + Last(need) + 1) >= bytes;
  }
  // Of each unit.
  std::vector<Position> Needs() const {
    std::vector<Position> needs(made_.units.size() + 4, kNoPosition);
    std::vector<uint32_t> pins;
    for (const UnitSnapshot& unit : made_.units) pins.push_back(unit.pins);
    for (Position i = 0; i < horizon(); ++i) {
      const PlannedCall& call = made_.calls[static_cast<size_t>(i)];
      for (uint32_t k = 0; k < call.units.count; ++k) {
        const Unit unit = call.units[k];
        if (call.unpins) --pins[unit];
        if (Pins(call.kind) && pins[unit]++ == 0 && i >= position_)
          needs[unit] = std::min(needs[unit], i);
      }
    }
    return needs;
  }
  Position horizon() const { return static_cast<Position>(made_.calls.size()); }

 private:
  Position Last(Position until) const { return std::min(std::max(until, position_), horizon()); }

  const RandomPlan& made_;
  Position position_ = 0;
  std::vector<int64_t> slack_;
};

TEST(ResidencyPlanTest, FollowsThePositionAsTheReferenceDoes) {
  ForSeeds(100, [](Random& random) {
    const RandomPlan made(&random);
    ResidencyPlan plan = made.Make();
    ReferencePosition reference(made, plan);
    const size_t units = made.units.size() + 4;  // the last are newer than the plan
    std::vector<Position> needs = reference.Needs();
    while (plan.position() < plan.horizon()) {
      std::vector<Unit> changed;
      const Position horizon = reference.horizon();
      const Position at = static_cast<Position>(random.Below(static_cast<uint64_t>(horizon) + 2));
      const Bytes weight = KiB(random.Below(8192));
      switch (random.Below(3)) {
        case 0: {
          const Position next = plan.position() + static_cast<Position>(random.Below(4));
          plan.MoveTo(next, &changed);
          reference.MoveTo(next);
          break;
        }
        case 1:
          plan.Take(weight, at);
          reference.Add(-static_cast<int64_t>(weight.count()), at);
          break;
        default:
          plan.Release(weight, at);
          reference.Add(static_cast<int64_t>(weight.count()), at);
          break;
      }
      for (const Unit one : changed) needs[one] = plan.NextNeed(one);
      ASSERT_EQ(needs, reference.Needs());  // no other has changed
      for (Unit one = 0; one < units; ++one) ASSERT_EQ(plan.NextNeed(one), needs[one]);
      ASSERT_EQ(plan.Fits(weight, at), reference.Fits(static_cast<int64_t>(weight.count()), at));
    }
  });
}

// With slots, too: what is held fits wherever what is in use does.
TEST(ResidencyPlanTest, HoldsNoMoreThanItsPages) {
  ForSeeds(100, [](Random& random) {
    const RandomProgram program(&random, 200, true);
    const PlanLimits limits{
        .page = MiB(2), .pages = program.RandomBudget(), .pools = {{.out_rate = 20e9}}};
    const ResidencyPlan plan = ResidencyPlan::Make(program.calls(), {}, limits);
    if (plan.over_budget() > 0) return;
    for (Position i = 0; i <= plan.horizon(); ++i) ASSERT_GE(plan.SlackAt(i), 0);
  });
}

}  // namespace
}  // namespace ravenstore::core::plan
