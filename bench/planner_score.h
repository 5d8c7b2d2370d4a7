// The planner's score on a set of traces: of each case what it computes and stalls over what it
// computes and the least stall that is known for it; no less than 1.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/planner_figures.h"
#include "bench/planner_references.h"
#include "bench/planner_sets.h"

namespace ravenstore::bench {

// The geometric mean over a trace's cases, then over traces; and the tail over all cases.
class Score {
 public:
  void Take(const std::string& trace, double score);
  bool empty() const { return cases_.empty(); }
  // REQUIRES of all: not empty.
  double Mean() const;
  // Of one trace; nullopt: it has no case.
  std::optional<double> OfTrace(const std::string& trace) const;
  double Tail() const;  // what 95 of 100 cases do not exceed
  // Which traces are the worst; of a set that only judges no more than how many cases there are.
  std::string Detail(const TraceSet& set) const;

 private:
  std::map<std::string, std::vector<double>> by_trace_;  // logarithms
  std::vector<double> cases_;
};

// Reports the score's mean, and its tail if that has a target. `skipped`: why there is no value.
void ReportScore(const std::string& name, const Score& score, const TraceSet& set,
                 const std::string& skipped, double target, std::optional<double> tail_target,
                 const Report& report);

// Adds those of all cases of these sets that are not there. Of all of them that takes minutes.
void FindReferences(const std::vector<const TraceSet*>& sets, References* references);

// The validation set's figures without values, and why.
void SkipValidation(const Report& report);

struct PagedScore {
  Score foreseen;  // all calls and lives are known
  Score hinted;
  Score learned;
  LruRatios against_lru;  // time of demand paging over the hinted and the learned time
  int failed = 0;
  std::string missing;  // a case without a reference
};
// `table`: prints each case as a line of a markdown table.
PagedScore ScorePaged(const TraceSet& set, const References& references, bool table = false);
void ReportPagedScore(const TraceSet& set, const PagedScore& score, const Report& report);
// What making one plan takes.
void MeasurePlanCost(const Report& report);
// What a call of a client takes on 10^6 live tensors, and how long a new plan holds the loop.
void MeasurePagedEventCost(double scale, const Report& report);

// What each tuned constant (core/tuned.def) is worth, with half of it and with twice as much: how
// much longer the set takes, hinted or learned; of a build with --config=vary. `names`: of these
// alone; empty: of all.
void MeasureConstants(const TraceSet& set, const std::vector<std::string>& names,
                      const Report& report);
// How many those are.
void CountConstants(const Report& report);

}  // namespace ravenstore::bench
