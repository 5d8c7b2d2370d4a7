#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "bench/planner_score.h"
#include "core/check.h"
#include "core/plan/residency_plan.h"
#include "sim/demand_paging.h"
#include "sim/generators.h"
#include "sim/paged_replay.h"
#include "sim/score.h"

namespace ravenstore::bench {

namespace {

using core::Duration;
using core::Seconds;
using sim::Foresight;
using sim::Hints;
using sim::Outcome;
using sim::Trace;
using std::chrono::steady_clock;

class PagedScorer {
 public:
  PagedScorer(const TraceSet& set, const References& references, bool table)
      : set_(set), references_(references), table_(table) {}

  PagedScore Run() {
    if (table_)
      std::printf(
          "| machine | trace | budget | foreseen | hints: time | hints: order | learned |\n"
          "|---|---|---|---|---|---|---|\n");
    ForEachCase(set_, [this](const ScoreCase& of) { Run(of); });
    return std::move(result_);
  }

 private:
  void Run(const ScoreCase& of) {
    const auto& [entry, trace, fingerprint, hardware, budget] = of;
    const std::string machine(hardware.name);
    const auto replay = [&](const Trace& replayed, Foresight foresight) {
      return ReplayOnPages(replayed, {.hardware = of.hardware, .budget = of.budget.bytes},
                           foresight);
    };
    const double foreseen = Judge(of, replay(trace, Foresight::kLives), 0, &result_.foreseen);
    std::vector<Outcome> with_hints;
    if (entry.hinted) {
      with_hints.push_back(replay(trace, Foresight::kHints));
    } else {
      for (const Hints hints : {Hints::kTime, Hints::kOrder})
        with_hints.push_back(replay(sim::WithHints(trace, hints), Foresight::kHints));
    }
    std::vector<double> hinted;
    for (const Outcome& outcome : with_hints)
      hinted.push_back(Judge(of, outcome, 0, &result_.hinted));
    const Outcome without = replay(trace, Foresight::kLearned);
    double learned = 0;
    if (entry.periodic) learned = Judge(of, without, LearnedFrom(entry, trace), &result_.learned);
    const Outcome demand = sim::ReplayDemandPaging(trace, hardware, budget.bytes, {});
    result_.against_lru.Take(
        demand, with_hints.front(), without,
        entry.name + " at " + std::to_string(budget.percent) + "% on " + machine);
    if (table_)
      std::printf("| %s | %s | %d%% | %.3f | %.3f | %.3f | %.3f |\n", machine.c_str(),
                  entry.name.c_str(), budget.percent, foreseen, hinted.front(), hinted.back(),
                  learned);
  }

  // 0: the replay failed, or the case has no reference.
  double Judge(const ScoreCase& of, const Outcome& outcome, size_t from, Score* to) {
    const References::Key key{of.entry.name, std::string(of.hardware.name), of.budget.percent,
                              from};
    const auto known = references_.Find(key, of.fingerprint, &result_.missing);
    if (!known) return 0;
    if (!outcome.failure.empty()) {
      ++result_.failed;
      return 0;
    }
    const Duration stall = sim::StallFrom(outcome, from);
    const double value = Seconds(known->compute + stall) / Seconds(known->compute + known->stall);
    to->Take(key.trace, value);
    return value;
  }

  const TraceSet& set_;
  const References& references_;
  const bool table_;
  PagedScore result_;
};

struct Targets {
  double foreseen = 1.01;
  double hinted = 1.06;
  std::optional<double> hinted_p95 = std::nullopt;
  double learned = 1.15;
  std::optional<double> learned_p95 = std::nullopt;
};
constexpr Targets kTuningTargets{
    .hinted = 1.03, .hinted_p95 = 1.15, .learned = 1.05, .learned_p95 = 1.25};
constexpr Targets kValidationTargets{
    .hinted = 1.06, .hinted_p95 = 1.15, .learned = 1.2, .learned_p95 = 1.45};
constexpr Targets kJobTargets{};

const Targets& TargetsOf(const TraceSet& set) {
  if (set.name == kValidationName) return kValidationTargets;
  return set.name == TuningSet().name ? kTuningTargets : kJobTargets;
}

// Calls that use four pages each in turn, of which half have room.
double PlanMilliseconds(uint32_t calls, uint32_t pages) {
  using namespace core::plan;  // NOLINT: the plan's own words
  std::vector<UnitSnapshot> units(2 * (size_t{pages} + 4));
  for (uint32_t page = 0; page < pages; ++page) units[2 * size_t{page}].live = 1;
  std::vector<PlannedCall> expected;
  for (uint32_t i = 0; i < calls; ++i) {
    const bool put = i % 2 == 1;
    expected.push_back({.kind = put ? CallKind::kPut : CallKind::kGet,
                        .unpins = put,
                        .modifies = put,
                        .units = {static_cast<Unit>(i / 2 * 4 % pages) * 2, 4, 1},
                        .at = std::chrono::microseconds(100) * i});
  }
  const PlanLimits limits{.page = core::MiB(16), .pages = pages / 2, .pools = {{.out_rate = 55e9}}};
  std::vector<double> times;
  for (int run = 0; run < 5; ++run) {
    const auto begin = steady_clock::now();
    const ResidencyPlan plan = ResidencyPlan::Make(expected, units, limits);
    times.push_back(core::Milliseconds(steady_clock::now() - begin));
    RAVEN_CHECK(plan.horizon() == static_cast<Position>(calls));
  }
  return Median(times);
}

}  // namespace

Outcome ReplayOnPages(const Trace& trace, sim::ReplaySetup setup, Foresight foresight) {
  setup.budget = setup.budget.RoundDown(sim::kBudgetUnit);
  setup.foresight = foresight;
  return sim::ReplayPaged(trace, setup);
}

Replay ReplayOnPagesByHints() {
  return [](const Trace& trace, const sim::Hardware& hardware, core::Bytes budget, bool hinted) {
    return ReplayOnPages(trace, {.hardware = hardware, .budget = budget},
                         hinted ? Foresight::kHints : Foresight::kLearned);
  };
}

PagedScore ScorePaged(const TraceSet& set, const References& references, bool table) {
  return PagedScorer(set, references, table).Run();
}

void ReportPagedScore(const TraceSet& set, const PagedScore& score, const Report& report) {
  const std::string name = "planner.paged_" + set.name;
  const Targets& of = TargetsOf(set);
  const std::string& skipped = score.missing;
  ReportScore(name + "_foreseen_score", score.foreseen, set, skipped, of.foreseen, {}, report);
  ReportScore(name + "_hinted_score", score.hinted, set, skipped, of.hinted, of.hinted_p95, report);
  ReportScore(name + "_learned_score", score.learned, set, skipped, of.learned, of.learned_p95,
              report);
  if (!skipped.empty()) return;
  report(
      {.name = name + "_replays_failed", .unit = "replays", .value = score.failed, .target = 0.0});
}

void MeasurePlanCost(const Report& report) {
  char detail[80];
  std::snprintf(detail, sizeof(detail), "10^4 calls and pages; 10^5: %.0f ms",
                PlanMilliseconds(100'000, 100'000));
  report({.name = "planner.plan_ms",
          .unit = "ms",
          .value = PlanMilliseconds(10'000, 10'000),
          .target = 20.0,
          .detail = detail});
}

}  // namespace ravenstore::bench
