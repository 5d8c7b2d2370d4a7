#include "bench/planner_sets.h"

#include "sim/generators.h"

namespace ravenstore::bench {

namespace {
constexpr int kPercents[] = {30, 50, 70, 90};
constexpr uint64_t kLeastOfStep = 115;  // percent
}  // namespace

const TraceSet& TuningSet() {
  static const TraceSet set = [] {
    TraceSet made;
    made.name = "tuning";
    made.generate = [](const std::string& name, const sim::Hardware& hardware) {
      return sim::Generate(name, hardware, kScoreIterations);
    };
    for (const std::string& name : sim::GeneratorNames()) {
      if (name != sim::kTwoTenants) made.traces.push_back({name, sim::IsPeriodic(name)});
    }
    return made;
  }();
  return set;
}

std::vector<ScoreBudget> ScoreBudgets(const sim::Trace& trace) {
  std::vector<ScoreBudget> budgets;
  const uint64_t footprint = trace.Footprint().count();
  const uint64_t least = trace.LargestStep().count() / 100 * kLeastOfStep;
  for (const int percent : kPercents) {
    const core::Bytes bytes(footprint / 100 * static_cast<uint64_t>(percent));
    if (bytes.RoundDown(core::MiB(2)).count() >= least) budgets.push_back({percent, bytes});
  }
  return budgets;
}

}  // namespace ravenstore::bench
