#include <algorithm>
#include <cstdio>
#include <string>

#include "bench/planner_score.h"

namespace ravenstore::bench {

namespace {

constexpr int kLeastPercent = 50;

struct Measured {
  double hinted;
  double learned;
  TenantFigures tenants;
  int failed;
};

Measured Measure(const References& references, core::Heuristics heuristics) {
  const ScoreOptions options{
      .machines = {kScoreMachines[0]}, .least_percent = kLeastPercent, .heuristics = heuristics};
  const SetScore score = ScoreSet(TuningSet(), references, options);
  Failures failures = score.failures;
  ReplayTight(heuristics, &failures);
  return {score.hinted.Mean(), score.learned.Mean(), JudgeTwoTenants(heuristics), failures.failed};
}

}  // namespace

void MeasureAblation(const References& references, const Report& report) {
  const Measured with = Measure(references, {});
  for (size_t i = 0; i < core::kHeuristics; ++i) {
    core::Heuristics heuristics;
    heuristics.LeaveOut(static_cast<core::Heuristic>(i));
    const Measured without = Measure(references, heuristics);
    const double worth =
        std::max({without.hinted / with.hinted, without.learned / with.learned,
                  without.tenants.vs_oracle / with.tenants.vs_oracle,
                  without.tenants.learned_vs_oracle / with.tenants.learned_vs_oracle});
    char words[240];
    std::snprintf(words, sizeof(words),
                  "without it: hinted %.4f of %.4f, learned %.4f of %.4f; two tenants %.3f of "
                  "%.3f, learned %.3f of %.3f, unfair %d of %d; replays failed %d of %d",
                  without.hinted, with.hinted, without.learned, with.learned,
                  without.tenants.vs_oracle, with.tenants.vs_oracle,
                  without.tenants.learned_vs_oracle, with.tenants.learned_vs_oracle,
                  without.tenants.unfair, with.tenants.unfair, without.failed, with.failed);
    report({.name = "planner.worth_of_" + std::string(core::kHeuristicNames[i]),
            .unit = "x",
            .value = worth,
            .detail = words});
  }
}

}  // namespace ravenstore::bench
