// The traces that the planner is judged on.
//
// All choices are made on the tuning set. The validation set is only for judging: it is evaluated
// one time for each tagged state (decision 0033 counts), and never case by case. Recorded jobs
// judge as well; a third of them is kept back for the final table.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "sim/hardware.h"
#include "sim/trace.h"

namespace ravenstore::bench {

inline constexpr const char* kValidationName = "validation";

struct TraceSet {
  struct Entry {
    std::string name;
    bool periodic;   // so that it can be learned
    size_t cut = 0;  // iterations before the first whole one, in addition to its set-up
    // It was recorded with the hints that its program gave, and is judged with these.
    bool hinted = false;
  };
  std::string name;  // "tuning", kValidationName
  std::vector<Entry> traces;
  std::function<sim::Trace(const std::string&, const sim::Hardware&)> generate;
  // No case of a set that only judges is named, so that no choice depends on a case.
  bool judges_only = false;
  std::string CaseName() const { return "a case of the " + name + " set"; }
  std::string without;  // what of it is not there; empty: all is
};

// Without the one of two tenants, who have figures of their own: those that are generated.
const TraceSet& TuningSet();
// The same and the programs of bench/recorded/tuning, whose traces lie in the folder `recordings`;
// empty: those are left out. Errors: of ReadRecording.
core::Result<TraceSet> TuningSet(const std::string& recordings);
// The same of sim::ValidationNames(), and the programs of bench/recorded, whose traces lie in the
// folder `recordings`; empty: those are left out. Errors: of ReadRecording.
core::Result<TraceSet> ValidationSet(const std::string& recordings);

// The programs of bench/recorded/jobs, with the GPU's own compute times. Empty without the folder.
// `without` names those that have no recording there. Errors: of ReadRecording.
core::Result<TraceSet> JobsSet(const std::string& recordings);
// The same of a third of all jobs, which are kept back. For the final table only: nothing is
// chosen by them, and their scores are not looked at before.
core::Result<TraceSet> KeptJobsSet(const std::string& recordings);

inline constexpr const char* kScoreMachines[] = {"h200-pcie5", "a100-pcie4"};
// Iterations of each trace; the first two whole ones after its set-up are for learning.
inline constexpr int kScoreIterations = 6;
inline constexpr size_t kScoreLearnedFrom = 2;
// The first iteration that counts of what is learned.
size_t LearnedFrom(const TraceSet::Entry& entry, const sim::Trace& trace);

struct ScoreBudget {
  int percent;  // of the footprint
  core::Bytes bytes;
};
// 30, 50, 70 and 90%, of what is hinted 50, 75, 90 and 100%: those of them that are at least 1.15
// times the largest step.
std::vector<ScoreBudget> ScoreBudgets(const sim::Trace& trace, bool hinted = false);

// A trace of a set on a machine with a budget. The references are valid during the visit.
struct ScoreCase {
  const TraceSet::Entry& entry;
  const sim::Trace& trace;
  uint64_t fingerprint;  // of the trace
  const sim::Hardware& hardware;
  const ScoreBudget& budget;
};
// Visits each case of the set, by machine, trace and budget. Generates a trace once per machine.
void ForEachCase(const TraceSet& set, const std::function<void(const ScoreCase&)>& visit);

}  // namespace ravenstore::bench
