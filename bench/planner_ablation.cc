#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "bench/planner_score.h"
#include "bench/vary_constants.h"
#include "sim/generators.h"
#include "sim/score.h"
#include "sim/simulator.h"

namespace ravenstore::bench {

namespace {

using sim::Trace;

constexpr int kLeastPercent = 50;
constexpr uint64_t kSeed = 7;

// What the set is replayed as.
struct Variant {
  const char* name;
  bool hinted;
  Trace (*of)(const Trace&);
};
constexpr Variant kVariants[] = {
    {"by time", true, [](const Trace& trace) { return sim::WithHints(trace, sim::Hints::kTime); }},
    {"by order", true,
     [](const Trace& trace) { return sim::WithHints(trace, sim::Hints::kOrder); }},
    {"30% of times dropped", true,
     [](const Trace& trace) { return sim::WithHints(trace, sim::Hints::kTime, 0.7, kSeed); }},
    {"learned", false, [](const Trace& trace) { return trace; }},
    {"learned, 5% out of order", false,
     [](const Trace& trace) { return sim::WithReorder(trace, 0.05, kSeed); }},
};
constexpr size_t kVariantCount = std::size(kVariants);

struct Case {
  size_t trace;  // of the set
  size_t variant;
  Trace replayed;
  core::Bytes budget;
  size_t from;  // the first iteration that counts
};

std::vector<Case> CasesOf(const TraceSet& set) {
  const sim::Hardware& hardware = *sim::FindHardware(kScoreMachines[0]);
  std::vector<Case> cases;
  for (size_t i = 0; i < set.traces.size(); ++i) {
    const TraceSet::Entry& entry = set.traces[i];
    const Trace trace = set.generate(entry.name, hardware);
    for (const ScoreBudget& budget : ScoreBudgets(trace, entry.hinted)) {
      if (budget.percent < kLeastPercent) continue;
      for (size_t v = 0; v < kVariantCount; ++v) {
        const Variant& variant = kVariants[v];
        // What has hints of its own is replayed with these, once, and without them.
        if (entry.hinted && variant.hinted && v > 0) continue;
        const bool is_late = !variant.hinted && entry.periodic;
        cases.push_back({i, v,
                         !entry.hinted    ? variant.of(trace)
                         : variant.hinted ? trace
                                          : variant.of(sim::WithHints(trace, sim::Hints::kNone)),
                         budget.bytes, is_late ? LearnedFrom(entry, trace) : 0});
      }
    }
  }
  return cases;
}

struct Measured {
  std::vector<double> logarithms;  // of what each case takes; of one that failed 0
  TenantFigures tenants;
  Failures failures;
};

Measured Measure(const std::vector<Case>& cases, core::Heuristics heuristics) {
  const sim::Hardware& hardware = *sim::FindHardware(kScoreMachines[0]);
  Measured measured;
  for (const Case& one : cases) {
    sim::Setup setup = *sim::SetupFor("value", hardware, one.budget);
    setup.heuristics = heuristics;
    const sim::Outcome outcome = sim::Simulate(one.replayed, setup);
    measured.failures.Take(outcome, one.replayed.name);
    const core::Duration took =
        sim::ComputeFrom(one.replayed, one.from) + sim::StallFrom(outcome, one.from);
    measured.logarithms.push_back(outcome.failure.empty() ? std::log(core::Seconds(took)) : 0);
  }
  ReplayTight(heuristics, &measured.failures);
  measured.tenants = JudgeTwoTenants(heuristics);
  return measured;
}

// By variant, how much longer all takes: geometric means over a trace's cases, then over traces.
std::vector<double> Longer(const std::vector<Case>& cases, size_t traces, const Measured& without,
                           const Measured& with) {
  std::vector<double> longer;
  for (size_t v = 0; v < kVariantCount; ++v) {
    std::vector<std::pair<double, int>> sums(traces);
    for (size_t i = 0; i < cases.size(); ++i) {
      if (cases[i].variant != v || without.logarithms[i] == 0 || with.logarithms[i] == 0) continue;
      sums[cases[i].trace].first += without.logarithms[i] - with.logarithms[i];
      ++sums[cases[i].trace].second;
    }
    double sum = 0;
    int counted = 0;
    for (const auto& [logarithms, count] : sums) {
      if (count == 0) continue;
      sum += logarithms / count;
      ++counted;
    }
    longer.push_back(counted == 0 ? 1 : std::exp(sum / counted));
  }
  return longer;
}

void ReportWorth(const std::string& name, const std::vector<double>& longer,
                 const Measured& without, const Measured& with, const Report& report) {
  std::string detail;
  char words[160];
  for (size_t v = 0; v < kVariantCount; ++v) {
    std::snprintf(words, sizeof(words), "%s %.4f, ", kVariants[v].name, longer[v]);
    detail += words;
  }
  std::snprintf(words, sizeof(words),
                "two tenants' stall %.3f of %.3f, learned %.3f of %.3f, unfair %d of %d; "
                "replays failed %d of %d",
                without.tenants.vs_oracle, with.tenants.vs_oracle,
                without.tenants.learned_vs_oracle, with.tenants.learned_vs_oracle,
                without.tenants.unfair, with.tenants.unfair, without.failures.failed,
                with.failures.failed);
  report({.name = "planner.worth_of_" + name,
          .unit = "x",
          .value = *std::max_element(longer.begin(), longer.end()),
          .detail = detail + words});
}

// The set as it is, which what is left out or varied is compared with.
class Baseline {
 public:
  explicit Baseline(const TraceSet& set) : traces_(set.traces.size()), cases_(CasesOf(set)) {}

  void Compare(const std::string& name, core::Heuristics heuristics, const Report& report) const {
    const Measured other = Measure(cases_, heuristics);
    ReportWorth(name, Longer(cases_, traces_, other, measured_), other, measured_, report);
  }

 private:
  const size_t traces_;
  const std::vector<Case> cases_;
  const Measured measured_ = Measure(cases_, {});
};

}  // namespace

void MeasureAblation(const TraceSet& set, const std::vector<std::string>& together,
                     const Report& report) {
  const Baseline baseline(set);
  if (!together.empty()) {
    core::Heuristics heuristics;
    for (const std::string& name : together) heuristics.LeaveOut(*core::FindHeuristic(name));
    baseline.Compare("these_" + std::to_string(together.size()), heuristics, report);
    return;
  }
  for (size_t i = 0; i < core::kHeuristics; ++i) {
    core::Heuristics heuristics;
    heuristics.LeaveOut(static_cast<core::Heuristic>(i));
    baseline.Compare(std::string(core::kHeuristicNames[i]), heuristics, report);
  }
}

void MeasureConstants(const TraceSet& set, const std::vector<std::string>& names,
                      const Report& report) {
  if (!ConstantsVary(report)) return;
  const Baseline baseline(set);
  VaryConstants(ConstantKind::kTuned, names,
                [&](const std::string& name) { baseline.Compare(name, {}, report); });
}

}  // namespace ravenstore::bench
