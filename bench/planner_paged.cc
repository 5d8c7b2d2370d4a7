#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/planner_score.h"
#include "core/check.h"
#include "core/plan/residency_plan.h"
#include "sim/generators.h"
#include "sim/paged_replay.h"
#include "sim/score.h"

namespace ravenstore::bench {

namespace {

using core::Duration;
using core::Seconds;
using sim::Foresight;
using sim::Hints;
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
    const auto score = [&](const Trace& replayed, Foresight foresight, size_t from, Score* to) {
      return Judge(of, replayed, foresight, from, to);
    };
    const double foreseen = score(trace, Foresight::kLives, 0, &result_.foreseen);
    std::vector<double> hinted;
    if (entry.hinted) {
      hinted.push_back(score(trace, Foresight::kHints, 0, &result_.hinted));
    } else {
      for (const Hints hints : {Hints::kTime, Hints::kOrder})
        hinted.push_back(
            score(sim::WithHints(trace, hints), Foresight::kHints, 0, &result_.hinted));
    }
    double learned = 0;
    if (entry.periodic)
      learned = score(trace, Foresight::kLearned, LearnedFrom(entry, trace), &result_.learned);
    if (table_)
      std::printf("| %s | %s | %d%% | %.3f | %.3f | %.3f | %.3f |\n",
                  std::string(hardware.name).c_str(), entry.name.c_str(), budget.percent, foreseen,
                  hinted.front(), hinted.back(), learned);
  }

  // 0: the replay failed, or the case has no reference.
  double Judge(const ScoreCase& of, const Trace& trace, Foresight foresight, size_t from,
               Score* to) {
    const References::Key key{of.entry.name, std::string(of.hardware.name), of.budget.percent,
                              from};
    const auto known = references_.Find(key, of.fingerprint, &result_.missing);
    if (!known) return 0;
    const sim::PagedOutcome result =
        sim::ReplayPaged(trace, {.hardware = of.hardware,
                                 .budget = of.budget.bytes.RoundDown(sim::kBudgetUnit),
                                 .foresight = foresight,
                                 .mapping = {}});
    if (!result.outcome.failure.empty()) {
      ++result_.failed;
      return 0;
    }
    const Duration stall = sim::StallFrom(result.outcome, from);
    const double value = Seconds(known->compute + stall) / Seconds(known->compute + known->stall);
    to->Take(key.trace, value);
    return value;
  }

  const TraceSet& set_;
  const References& references_;
  const bool table_;
  PagedScore result_;
};

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

PagedScore ScorePaged(const TraceSet& set, const References& references, bool table) {
  return PagedScorer(set, references, table).Run();
}

void ReportPagedScore(const TraceSet& set, const PagedScore& score, const Report& report) {
  const std::string name = "planner.paged_" + set.name;
  ReportScore(name + "_foreseen_score", score.foreseen, set, score.missing, 1.01, {}, report);
  ReportScore(name + "_hinted_score", score.hinted, set, score.missing, 1.03, 1.15, report);
  ReportScore(name + "_learned_score", score.learned, set, score.missing, 1.05, 1.25, report);
  report({.name = "planner.paged_replays_failed",
          .unit = "replays",
          .value = score.failed,
          .target = 0.0});
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
