// Two tenants on one device, at all budgets, on two machines, with times disturbed in eight ways:
// whose peaks meet is chance, so the mean is judged (docs/decisions/0018).
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/planner_figures.h"
#include "bench/planner_sets.h"
#include "sim/generators.h"
#include "sim/oracle.h"
#include "sim/score.h"

namespace ravenstore::bench {

namespace {

using core::Duration;
using core::Seconds;
using sim::Outcome;
using sim::Trace;

constexpr uint64_t kRuns = 8;
constexpr double kDisturbedBy = 0.1;
// A tenant may stall at most kFairStall times what it stalls alone with its share of device and
// link, plus kFairCompute of its compute time.
constexpr double kFairStall = 1.25;
constexpr double kFairCompute = 0.01;
// The oracle's stall is taken for at least this part of the compute time.
constexpr double kLeastStall = 1e-4;

std::vector<Trace> RunsOn(const sim::Hardware& hardware) {
  std::vector<Trace> runs = {sim::Generate(sim::kTwoTenants, hardware, kScoreIterations)};
  for (uint64_t run = 1; run < kRuns; ++run)
    runs.push_back(sim::WithTimesPerturbed(runs.front(), kDisturbedBy, run));
  return runs;
}

Duration ComputeOf(const Trace& trace) {
  return sim::ComputeFrom(trace, 0);
}

double StallOf(const Outcome& outcome, uint32_t tenant) {
  return outcome.client_stall.empty() ? 0 : Seconds(outcome.client_stall[tenant]);
}

class Tenants {
 public:
  explicit Tenants(Replay replay) : replay_(std::move(replay)) {}

  void Run(const sim::Hardware& hardware) {
    const std::vector<Trace> runs = RunsOn(hardware);
    for (const sim::Budget& budget : sim::FeasibleBudgets(runs.front())) {
      std::vector<Outcome> hinted, learned, oracle;
      for (const Trace& trace : runs) {
        hinted.push_back(
            Take(replay_(sim::WithHints(trace, sim::Hints::kTime), hardware, budget.bytes, true)));
        learned.push_back(Take(replay_(trace, hardware, budget.bytes, false)));
        oracle.push_back(sim::SimulateOracle(trace, hardware, budget.bytes));
      }
      const double compute = Seconds(ComputeOf(runs.front()));
      const double best = std::max(Seconds(sim::MeanOf(oracle).stall), kLeastStall * compute);
      logarithms_ +=
          std::log(std::max(Seconds(sim::MeanOf(hinted).stall), kLeastStall * compute) / best);
      learned_logarithms_ +=
          std::log(std::max(Seconds(sim::MeanOf(learned).stall), kLeastStall * compute) / best);
      ++cases_;
      const std::string where =
          std::to_string(budget.percent) + "% on " + std::string(hardware.name);
      const Outcome known = sim::MeanOf(oracle);
      JudgeFairness(runs, hardware, budget, sim::MeanOf(learned), known, where + ", learned");
      JudgeFairness(runs, hardware, budget, sim::MeanOf(hinted), known, where + ", hinted");
    }
  }

  void ReportFigures(const Report& report) const {
    char learned[96];
    std::snprintf(learned, sizeof(learned), "hinted by time; learned %.3f; %d replays failed",
                  std::exp(learned_logarithms_ / cases_), failed_);
    report({.name = "planner.paged_two_tenants_vs_oracle",
            .unit = "x",
            .value = std::exp(logarithms_ / cases_),
            .bound = 1.0,
            .target = 0.75,
            .detail = learned});
    report({.name = "planner.paged_two_tenants_unfair",
            .unit = "cases",
            .value = unfair_,
            .target = 2.0,
            .detail = std::to_string(judged_) + " cases" + unfair_where_});
  }

 private:
  Outcome Take(Outcome outcome) {
    failed_ += outcome.failure.empty() ? 0 : 1;
    return outcome;
  }
  void JudgeFairness(const std::vector<Trace>& runs, const sim::Hardware& hardware,
                     const sim::Budget& budget, const Outcome& together, const Outcome& oracle,
                     const std::string& where) {
    const uint32_t tenants = runs.front().clients;
    sim::Hardware share = hardware;
    share.up /= tenants;
    share.down /= tenants;
    const core::Bytes part(budget.bytes.count() / tenants);
    for (uint32_t tenant = 0; tenant < tenants; ++tenant) {
      const Trace only = runs.front().Only(tenant);
      if (part < only.LargestStep().RoundUp(core::MiB(2))) continue;  // it could not run there
      const bool hinted = where.ends_with("hinted");
      const Outcome alone =
          replay_(hinted ? sim::WithHints(only, sim::Hints::kTime) : only, share, part, hinted);
      if (!alone.failure.empty()) continue;
      ++judged_;
      const double stall = StallOf(together, tenant);
      const double fair =
          kFairStall * Seconds(alone.stall) + kFairCompute * Seconds(ComputeOf(only));
      if (stall <= fair) continue;
      ++unfair_;
      char words[128];
      std::snprintf(words, sizeof(words),
                    "; tenant %u at %s: %.3g s, alone %.3g s, the oracle %.3g s", tenant + 1,
                    where.c_str(), stall, Seconds(alone.stall), StallOf(oracle, tenant));
      if (unfair_ <= 3) unfair_where_ += words;
    }
  }

  const Replay replay_;
  double logarithms_ = 0;
  double learned_logarithms_ = 0;
  int cases_ = 0;
  int judged_ = 0;
  int unfair_ = 0;
  int failed_ = 0;
  std::string unfair_where_;
};

}  // namespace

void MeasureTwoTenants(const Report& report) {
  Tenants tenants(ReplayOnPagesByHints());
  for (const char* machine : kScoreMachines) tenants.Run(*sim::FindHardware(machine));
  tenants.ReportFigures(report);
}

}  // namespace ravenstore::bench
