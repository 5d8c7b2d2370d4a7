// What nobody can learn in order, only by how often it is used.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "bench/planner_figures.h"
#include "bench/planner_sets.h"
#include "sim/score.h"
#include "sim/simulator.h"

namespace ravenstore::bench {

namespace {

// The rivals are the store's own, with another rule for what leaves.
constexpr const char* kRivals[] = {"lru", "gdsf"};
constexpr const char* kTuned = "zipf";
constexpr const char* kJudged = "prefix-cache";

sim::Outcome Simulated(const sim::Trace& trace, const sim::Setup& setup) {
  return sim::Simulate(trace, setup);
}

// Replays a trace on the machine and budget of the setup.
using SetupReplay = std::function<sim::Outcome(const sim::Trace& trace, const sim::Setup& setup)>;

class AgainstRivals {
 public:
  // `own`: what is judged.
  AgainstRivals(SetupReplay own, Failures* failures) : own_(std::move(own)), failures_(*failures) {}

  void Run(const TraceSet& set, const char* name) {
    for (const char* machine : kScoreMachines) {
      const sim::Hardware& hardware = *sim::FindHardware(machine);
      const sim::Trace trace = set.generate(name, hardware);
      for (const ScoreBudget& budget : ScoreBudgets(trace)) {
        where_ = set.judges_only ? name
                                 : std::string(name) + " at " + std::to_string(budget.percent) +
                                       "% on " + machine;
        Judge(trace, hardware, budget);
      }
    }
  }

  void ReportWorst(const std::string& figure, const std::string& more, const Report& report) const {
    report({.name = figure,
            .unit = "x",
            .value = worst_,
            .bound = 1.0,
            .target = 1.05,
            .detail = worst_where_ + more});
  }

 private:
  void Judge(const sim::Trace& trace, const sim::Hardware& hardware, const ScoreBudget& budget) {
    const auto stall = [&](const SetupReplay& replay, const char* policy) {
      const sim::Outcome outcome = replay(trace, *sim::SetupFor(policy, hardware, budget.bytes));
      failures_.Take(outcome, where_);
      return outcome.failure.empty() ? outcome.stall : core::Duration::max();
    };
    core::Duration best = core::Duration::max();
    for (const char* rival : kRivals) best = std::min(best, stall(Simulated, rival));
    const core::Duration own = stall(own_, "value");
    if (own == core::Duration::max() || best == core::Duration::max() || best == core::Duration{0})
      return;
    const double ratio = core::Seconds(own) / core::Seconds(best);
    if (ratio <= worst_) return;
    worst_ = ratio;
    worst_where_ = where_;
  }

  const SetupReplay own_;
  Failures& failures_;
  std::string where_;
  double worst_ = 0;
  std::string worst_where_;
};

}  // namespace

void MeasureZipf(const TraceSet* validation, Failures* failures, const Report& report) {
  AgainstRivals rivals(Simulated, failures);
  rivals.Run(TuningSet(), kTuned);
  if (validation != nullptr) rivals.Run(*validation, kJudged);
  rivals.ReportWorst("planner.zipf_vs_best",
                     validation == nullptr ? "; prefix-cache only with --validation" : "", report);
}

void MeasureZipfOnPages(Failures* failures, const Report& report) {
  const SetupReplay on_pages = [](const sim::Trace& trace, const sim::Setup& setup) {
    return ReplayOnPages(trace, setup, sim::Foresight::kLearned);
  };
  AgainstRivals rivals(on_pages, failures);
  rivals.Run(TuningSet(), kTuned);
  rivals.ReportWorst("planner.paged_zipf_vs_best", "", report);
}

}  // namespace ravenstore::bench
