// What nobody can learn in order, only by how often it is used.
#include <algorithm>
#include <string>

#include "bench/planner_figures.h"
#include "bench/planner_sets.h"
#include "sim/generators.h"
#include "sim/score.h"
#include "sim/simulator.h"

namespace ravenstore::bench {

namespace {

// The rivals are the store's own, with another rule for what leaves.
constexpr const char* kRivals[] = {"lru", "gdsf"};
constexpr const char* kTraces[] = {"zipf"};

}  // namespace

void MeasureZipf(Failures* failures, const Report& report) {
  double worst = 0;
  std::string where;
  for (const char* machine : kScoreMachines) {
    const sim::Hardware& hardware = *sim::FindHardware(machine);
    for (const char* name : kTraces) {
      const sim::Trace trace = sim::Generate(name, hardware, kScoreIterations);
      for (const ScoreBudget& budget : ScoreBudgets(trace)) {
        const std::string here =
            std::string(name) + " at " + std::to_string(budget.percent) + "% on " + machine;
        const auto stall = [&](const char* policy) {
          const sim::Outcome outcome =
              sim::Simulate(trace, *sim::SetupFor(policy, hardware, budget.bytes));
          failures->Take(outcome, here);
          return outcome.failure.empty() ? outcome.stall : core::Duration::max();
        };
        core::Duration best = core::Duration::max();
        for (const char* rival : kRivals) best = std::min(best, stall(rival));
        const core::Duration own = stall("value");
        if (own == core::Duration::max() || best == core::Duration::max() ||
            best == core::Duration{0})
          continue;
        const double ratio = core::Seconds(own) / core::Seconds(best);
        if (ratio <= worst) continue;
        worst = ratio;
        where = here;
      }
    }
  }
  report({.name = "planner.zipf_vs_best",
          .unit = "x",
          .value = worst,
          .bound = 1.0,
          .target = 1.05,
          .detail = where});
}

}  // namespace ravenstore::bench
