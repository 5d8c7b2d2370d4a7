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
#include "sim/simulator.h"

namespace ravenstore::bench {

namespace {

using core::Duration;
using core::Seconds;
using sim::Outcome;
using sim::Trace;

constexpr uint64_t kRuns = 8;
constexpr double kDisturbedBy = 0.1;
// A tenant may stall so many times what it stalls alone with its share of device and link, and such
// a part of its compute time besides.
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

  TenantFigures figures() const {
    return {std::exp(logarithms_ / cases_),
            std::exp(learned_logarithms_ / cases_),
            unfair_,
            judged_,
            failed_,
            unfair_where_};
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

TenantFigures Judge(const Replay& replay) {
  Tenants tenants(replay);
  for (const char* machine : kScoreMachines) tenants.Run(*sim::FindHardware(machine));
  return tenants.figures();
}

void ReportTenants(const std::string& name, const TenantFigures& figures, double unfair,
                   const Report& report) {
  char learned[96];
  std::snprintf(learned, sizeof(learned), "hinted by time; learned %.3f; %d replays failed",
                figures.learned_vs_oracle, figures.failed);
  report({.name = name + "_vs_oracle",
          .unit = "x",
          .value = figures.vs_oracle,
          .bound = 1.0,
          .target = 0.75,
          .detail = learned});
  report({.name = name + "_unfair",
          .unit = "cases",
          .value = figures.unfair,
          .target = unfair,
          .detail = std::to_string(figures.judged) + " cases" + figures.unfair_where});
}

}  // namespace

TenantFigures JudgeTwoTenants(core::Heuristics heuristics) {
  return Judge([heuristics](const Trace& trace, const sim::Hardware& hardware, core::Bytes budget,
                            bool /*hinted*/) {
    sim::Setup setup = *sim::SetupFor("value", hardware, budget);
    setup.heuristics = heuristics;
    return sim::Simulate(trace, setup);
  });
}

void MeasureTwoTenants(const Report& report) {
  ReportTenants("planner.two_tenants", JudgeTwoTenants({}), 0, report);
}

void MeasureTwoTenantsOnPages(const Report& report) {
  ReportTenants("planner.paged_two_tenants", Judge(ReplayOnPagesByHints()), 2, report);
}

}  // namespace ravenstore::bench
