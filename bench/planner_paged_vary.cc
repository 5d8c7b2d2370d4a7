#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/planner_score.h"
#include "bench/vary_constants.h"
#include "sim/generators.h"
#include "sim/score.h"

namespace ravenstore::bench {

namespace {

using core::Duration;
using core::Seconds;
using sim::Foresight;
using sim::Trace;

constexpr int kLeastPercent = 50;
constexpr double kReordered = 0.05;  // of the calls
constexpr uint64_t kSeed = 1;

// The tuning set on pages, on one machine from 50% on.
class PagedCases {
 public:
  explicit PagedCases(const TraceSet& set) {
    const sim::Hardware& hardware = *sim::FindHardware(kScoreMachines[0]);
    for (const TraceSet::Entry& entry : set.traces) {
      const Trace trace = set.generate(entry.name, hardware);
      for (const ScoreBudget& budget : ScoreBudgets(trace, entry.hinted)) {
        if (budget.percent < kLeastPercent) continue;
        cases_.push_back({entry.name,
                          entry.hinted ? trace : sim::WithHints(trace, sim::Hints::kTime),
                          budget.bytes, Kind::kHinted, 0});
        if (!entry.periodic) continue;
        const size_t from = LearnedFrom(entry, trace);
        cases_.push_back({entry.name, trace, budget.bytes, Kind::kLearned, from});
        cases_.push_back({entry.name, sim::WithReorder(trace, kReordered, kSeed), budget.bytes,
                          Kind::kReordered, from});
      }
    }
    measured_ = Measure();
  }

  // How much longer the worst of hinted, learned and reordered takes now than at first: geometric
  // means over a trace's cases, then over traces.
  void Compare(const std::string& name, const Report& report) const {
    const std::vector<double> now = Measure();
    const double hinted = Longer(now, Kind::kHinted);
    const double learned = Longer(now, Kind::kLearned);
    const double reordered = Longer(now, Kind::kReordered);
    char detail[128];
    std::snprintf(detail, sizeof(detail),
                  "hinted %.4f, learned %.4f, out of order %.4f, replays failed %d", hinted,
                  learned, reordered, static_cast<int>(std::count(now.begin(), now.end(), 0.0)));
    report({.name = "planner.worth_of_" + name,
            .unit = "x",
            .value = std::max({hinted, learned, reordered}),
            .detail = detail});
  }

 private:
  // kReordered: learned, with some calls in another order.
  enum class Kind { kHinted, kLearned, kReordered };

  struct Case {
    std::string name;
    Trace replayed;
    core::Bytes budget;
    Kind kind;
    size_t from;  // the first iteration that counts
  };

  // The logarithm of the seconds that each case takes; 0: it failed.
  std::vector<double> Measure() const {
    const sim::Hardware& hardware = *sim::FindHardware(kScoreMachines[0]);
    std::vector<double> logarithms;
    for (const Case& of : cases_) {
      const sim::Outcome outcome =
          ReplayOnPages(of.replayed, {.hardware = hardware, .budget = of.budget},
                        of.kind == Kind::kHinted ? Foresight::kHints : Foresight::kLearned);
      const Duration took =
          sim::ComputeFrom(of.replayed, of.from) + sim::StallFrom(outcome, of.from);
      logarithms.push_back(outcome.failure.empty() ? std::log(Seconds(took)) : 0);
    }
    return logarithms;
  }

  double Longer(const std::vector<double>& now, Kind kind) const {
    std::map<std::string, std::pair<double, int>> sums;
    for (size_t i = 0; i < cases_.size(); ++i) {
      if (cases_[i].kind != kind || now[i] == 0 || measured_[i] == 0) continue;
      sums[cases_[i].name].first += now[i] - measured_[i];
      ++sums[cases_[i].name].second;
    }
    double sum = 0;
    for (const auto& [name, of] : sums) sum += of.first / of.second;
    return sums.empty() ? 1 : std::exp(sum / static_cast<double>(sums.size()));
  }

  std::vector<Case> cases_;
  std::vector<double> measured_;
};

}  // namespace

void CountConstants(const Report& report) {
  report({.name = "planner.tuned_constants",
          .unit = "constants",
          .value = static_cast<double>(TunedConstants()),
          .target = 20.0});
}

void MeasureConstants(const TraceSet& set, const std::vector<std::string>& names,
                      const Report& report) {
  if (!ConstantsVary(report)) return;
  const PagedCases cases(set);
  VaryConstants(names, [&](const std::string& name) { cases.Compare(name, report); });
}

}  // namespace ravenstore::bench
