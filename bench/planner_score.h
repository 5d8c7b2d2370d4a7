// The planner's score on a set of traces: of each case what it computes and stalls over what it
// computes and the least stall that is known for it; no less than 1.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/planner_figures.h"
#include "bench/planner_references.h"
#include "bench/planner_sets.h"
#include "core/heuristic.h"

namespace ravenstore::bench {

// The geometric mean over a trace's cases, then over traces; and the tail over all cases.
class Score {
 public:
  void Take(const std::string& trace, double score);
  bool empty() const { return cases_.empty(); }
  // REQUIRES of all: not empty.
  double Mean() const;
  double Tail() const;  // what 95 of 100 cases do not exceed
  std::string Detail() const;

 private:
  std::map<std::string, std::vector<double>> by_trace_;  // logarithms
  std::vector<double> cases_;
};

struct ScoreOptions {
  std::vector<std::string> machines = {std::begin(kScoreMachines), std::end(kScoreMachines)};
  int least_percent = 0;  // budgets below are left out
  core::Heuristics heuristics = {};
  bool table = false;  // prints each case as a line of a markdown table
};

struct SetScore {
  Score hinted;
  Score learned;
  LruRatios against_lru;
  Failures failures;
  std::string missing;  // a case without a reference; those count in no score
};

SetScore ScoreSet(const TraceSet& set, const References& references, const ScoreOptions& options);

void TellSetScore(const TraceSet& set, const SetScore& score, const Report& report);

// What each heuristic is worth: the set's scores, the tenants' and failed replays without it, of
// budgets from 50% up on one machine.
void MeasureAblation(const References& references, const Report& report);

}  // namespace ravenstore::bench
