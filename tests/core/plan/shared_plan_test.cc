#include "core/plan/shared_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "tests/core/plan/programs.h"

namespace ravenstore::core::plan {
namespace {

using std::chrono::microseconds;

// Gets and puts of whole pages, one by one, each 100 us after the one before.
std::vector<PlannedCall> UsesOf(const std::vector<Unit>& pages, Duration from) {
  std::vector<PlannedCall> calls;
  for (size_t i = 0; i < pages.size(); ++i) {
    const Duration at = from + microseconds(100 * i);
    calls.push_back({.kind = CallKind::kGet, .units = {pages[i] * 2, 1}, .at = at});
    calls.push_back({.kind = CallKind::kPut, .unpins = true, .units = {pages[i] * 2, 1}, .at = at});
  }
  return calls;
}

constexpr UnitSnapshot kHere{.live = 1, .held = true};
constexpr UnitSnapshot kAway{.live = 1};
const PlanLimits kTwoPages{.page = MiB(2), .pages = 2, .pools = {{.out_rate = 1e9}}};

TEST(SharedPlanTest, ThePageThatIsNeededLastLeavesWhicheverClientHasIt) {
  const std::vector<PlannedCall> first = UsesOf({0}, microseconds(900));
  const std::vector<PlannedCall> second = UsesOf({0, 1, 0}, microseconds(0));
  const std::vector<UnitSnapshot> one = {kHere, {}};
  const std::vector<UnitSnapshot> two = {kHere, {}, kAway, {}};
  const auto plans = ResidencyPlan::MakeShared(
      std::vector<ResidencyPlan::Forecast>{{first, one}, {second, two}}, kTwoPages);
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[0].LeavesAt(0), 0);  // before its client's first call
  EXPECT_EQ(plans[1].LeavesAt(0), kNoPosition);
  EXPECT_EQ(plans[0].NextNeed(0), 0);
  EXPECT_EQ(plans[1].NextNeed(2), 2);
}

TEST(SharedPlanTest, WhatOneTakesTheOtherLacks) {
  const std::vector<PlannedCall> first = UsesOf({0, 0}, microseconds(0));
  const std::vector<PlannedCall> second = UsesOf({0, 0}, microseconds(50));
  const std::vector<UnitSnapshot> units = {kAway, {}};
  auto plans = ResidencyPlan::MakeShared(
      std::vector<ResidencyPlan::Forecast>{{first, units}, {second, units}},
      {.page = MiB(2), .pages = 3, .pools = {{.out_rate = 1e9}}});
  EXPECT_TRUE(plans[1].Fits(MiB(2), kNoPosition));
  plans[0].Take(MiB(2), kNoPosition);
  EXPECT_FALSE(plans[1].Fits(MiB(2), kNoPosition));
  plans[1].Release(MiB(2), kNoPosition);
  EXPECT_TRUE(plans[0].Fits(MiB(2), kNoPosition));
}

// Of one client it is that client's plan; of two, the plan of one client that makes all calls.
TEST(SharedPlanTest, EqualsThePlanOfOneClientThatMakesAllCalls) {
  size_t departures = 0;
  ForSeeds(200, [&departures](Random& random) {
    std::vector<std::vector<PlannedCall>> calls;
    std::vector<std::vector<UnitSnapshot>> units;
    std::vector<ResidencyPlan::Forecast> forecasts;
    const size_t clients = 1 + random.Below(3);
    uint32_t pages = 0;
    for (size_t i = 0; i < clients; ++i) {
      const RandomProgram program(&random, 20 + random.Below(60), random.OneIn(2));
      calls.push_back(program.calls());
      units.push_back(SnapshotAfter(program.calls(), 0, &random));
      pages += program.RandomBudget();
    }
    for (size_t i = 0; i < clients; ++i) forecasts.push_back({calls[i], units[i]});
    const PlanLimits limits{.page = MiB(2), .pages = pages, .pools = {{.out_rate = 1e9}}};
    const auto plans = ResidencyPlan::MakeShared(forecasts, limits);

    // All calls by time, with the units of each client after those of the one before.
    struct Call {
      PlannedCall call;
      size_t client;
      Position own;
    };
    std::vector<Call> all;
    std::vector<Unit> first(clients + 1);
    std::vector<UnitSnapshot> all_units;
    for (size_t i = 0; i < clients; ++i) {
      Unit end = static_cast<Unit>(units[i].size());
      for (const PlannedCall& call : calls[i]) end = std::max(end, call.units.end());
      end += end % 2;
      first[i + 1] = first[i] + end;
      all_units.resize(first[i + 1]);
      std::copy(units[i].begin(), units[i].end(), all_units.begin() + first[i]);
      for (size_t k = 0; k < calls[i].size(); ++k) {
        PlannedCall call = calls[i][k];
        if (call.units.count > 0) call.units.first += first[i];
        all.push_back({call, i, static_cast<Position>(k)});
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Call& a, const Call& b) { return a.call.at < b.call.at; });
    std::vector<PlannedCall> merged;
    for (const Call& call : all) merged.push_back(call.call);
    const ResidencyPlan whole = ResidencyPlan::Make(merged, all_units, limits);

    for (size_t i = 0; i < clients; ++i) {
      EXPECT_EQ(plans[i].over_budget(), whole.over_budget());
      for (Unit unit = 0; unit < first[i + 1] - first[i]; ++unit) {
        const auto own = plans[i].GapsOf(unit);
        const auto gaps = whole.GapsOf(first[i] + unit);
        ASSERT_EQ(own.size(), gaps.size());
        for (size_t k = 0; k < gaps.size(); ++k) {
          const auto at = [&](Position position) {
            return position == kNoPosition ? position : all[static_cast<size_t>(position)].own;
          };
          EXPECT_EQ(own[k].need, at(gaps[k].need));
          EXPECT_EQ(own[k].dies, at(gaps[k].dies));
          EXPECT_EQ(own[k].leaves == kNoPosition, gaps[k].leaves == kNoPosition);
          departures += own[k].leaves != kNoPosition ? 1 : 0;
          if (own[k].leaves == kNoPosition || own[k].need == kNoPosition) continue;
          EXPECT_LE(own[k].leaves, own[k].need);
        }
      }
    }
  });
  EXPECT_GT(departures, 1000u);
}

}  // namespace
}  // namespace ravenstore::core::plan
