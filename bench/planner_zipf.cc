// Tensors whose order of use cannot be learned, only how often each is used.
#include <algorithm>
#include <string>

#include "bench/planner_figures.h"
#include "bench/planner_sets.h"
#include "sim/demand_paging.h"

namespace ravenstore::bench {

namespace {

constexpr const char* kTuned = "zipf";
constexpr const char* kJudged = "prefix-cache";

class AgainstRivals {
 public:
  explicit AgainstRivals(Failures* failures) : failures_(*failures) {}

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
    const auto stall = [&](const sim::Outcome& outcome) {
      failures_.Take(outcome, where_);
      return outcome.failure.empty() ? outcome.stall : core::Duration::max();
    };
    core::Duration best = core::Duration::max();
    for (const sim::EvictionOrder order : {sim::EvictionOrder::kLru, sim::EvictionOrder::kGdsf}) {
      best = std::min(best, stall(sim::ReplayDemandPaging(trace, hardware, budget.bytes,
                                                          {.order = order, .copies_out = false})));
    }
    const core::Duration own = stall(ReplayOnPages(
        trace, {.hardware = hardware, .budget = budget.bytes}, sim::Foresight::kLearned));
    if (own == core::Duration::max() || best == core::Duration::max() || best == core::Duration{0})
      return;
    const double ratio = core::Seconds(own) / core::Seconds(best);
    if (ratio <= worst_) return;
    worst_ = ratio;
    worst_where_ = where_;
  }

  Failures& failures_;
  std::string where_;
  double worst_ = 0;
  std::string worst_where_;
};

}  // namespace

void MeasureZipf(const TraceSet* validation, Failures* failures, const Report& report) {
  AgainstRivals rivals(failures);
  rivals.Run(TuningSet(), kTuned);
  if (validation != nullptr) rivals.Run(*validation, kJudged);
  rivals.ReportWorst("planner.paged_zipf_vs_best",
                     validation == nullptr ? "; prefix-cache only with --validation" : "", report);
}

}  // namespace ravenstore::bench
