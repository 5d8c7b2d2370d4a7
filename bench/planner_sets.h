// The traces that the planner is judged on.
//
// On the tuning set whatever is chosen is chosen. The validation set is for judging alone: it is
// looked at once for each state that is tagged (docs/history/validation.md counts), and never case
// by case.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/types.h"
#include "sim/hardware.h"
#include "sim/trace.h"

namespace ravenstore::bench {

struct TraceSet {
  struct Entry {
    std::string name;
    bool periodic;  // so that it can be learned
  };
  std::string name;  // "tuning"
  std::vector<Entry> traces;
  std::function<sim::Trace(const std::string&, const sim::Hardware&)> generate;
};

// Without the one of two tenants, who have figures of their own.
const TraceSet& TuningSet();

inline constexpr const char* kScoreMachines[] = {"h200-pcie5", "a100-pcie4"};
// Iterations of each trace; the first two after its set-up are for learning.
inline constexpr int kScoreIterations = 6;
inline constexpr size_t kScoreLearnedFrom = 2;

struct ScoreBudget {
  int percent;  // of the footprint
  core::Bytes bytes;
};
// 30, 50, 70 and 90%, those of them that are at least 1.15 times the largest step.
std::vector<ScoreBudget> ScoreBudgets(const sim::Trace& trace);

}  // namespace ravenstore::bench
