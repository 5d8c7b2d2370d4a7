// The planner's figures: how well it decides, in the simulator, what deciding costs, and whether
// the simulator tells the truth.
#pragma once

#include <functional>
#include <string>

#include "bench/figure.h"
#include "bench/planner_sets.h"
#include "core/heuristic.h"
#include "sim/paged_replay.h"
#include "sim/simulator.h"

namespace ravenstore::bench {

// Replays that did not get through, and where.
struct Failures {
  int failed = 0;
  int endless = 0;  // of those: somebody waited for ever
  int refused = 0;  // of those that got through: a client was refused, and took its tensors again
  std::string where;

  void Take(const sim::Outcome& outcome, const std::string& whose);
};

// How much longer the same takes where nothing moves before it must, and all of it: demand paging.
class LruRatios {
 public:
  void Take(const sim::Outcome& demand, const sim::Outcome& hinted, const sim::Outcome& learned,
            const std::string& whose);
  // `of`: whose cases.
  void ReportAll(const std::string& of, const Report& report) const;
  // The worst ratio only, with the geometric means as its detail.
  void ReportWorst(const std::string& name, double target, const Report& report) const;

 private:
  double MeanOf(double logarithms) const;

  double worst_ = 0;
  std::string where_;
  double hinted_ = 0;  // logarithms
  double learned_ = 0;
  int cases_ = 0;
};

// Stall over the lower bound or the best that is known, the worst case of each kind: printed beside
// the scores, judging nothing.
void MeasureStallRatios(bool table, Failures* failures, const Report& report);

// Of the traces at the level of kernels: at 50, 70 and 90% of the footprint what is computed and
// stalled without hints, once it is learned, over the same with hints (the better of time and
// order), the worst.
void MeasureKernelLevel(bool table, Failures* failures, const Report& report);
// The same figure of the plan on pages.
void MeasureKernelLevelOnPages(Failures* failures, const Report& report);
// Replays a trace with memory in pages, on the machine, budget and pools of `setup`.
sim::Outcome ReplayOnPages(const sim::Trace& trace, const sim::Setup& setup,
                           sim::Foresight foresight);
// Replays a trace on this machine with this budget; `hinted`: its puts have hints.
using Replay = std::function<sim::Outcome(const sim::Trace& trace, const sim::Hardware& hardware,
                                          core::Bytes budget, bool hinted)>;
// The one with memory in pages, which knows hints and what it learns.
Replay ReplayOnPagesByHints();

// The same traces, two iterations, at 115 to 170% of their largest step: what gets through at all.
void ReplayTight(core::Heuristics heuristics, Failures* failures);
// Those of a set that only judges.
void ReplayTight(const TraceSet& judge, Failures* failures);

// Stall of two tenants over the greedy oracle's, and whether each has its share.
void MeasureTwoTenants(const Report& report);
struct TenantFigures {
  double vs_oracle = 0;  // hinted by time
  double learned_vs_oracle = 0;
  int unfair = 0;
  int judged = 0;
  int failed = 0;  // replays
  std::string unfair_where;
};
TenantFigures JudgeTwoTenants(core::Heuristics heuristics);
// The same figures of the plan on pages.
void MeasureTwoTenantsOnPages(const Report& report);
// Of what is read by chance: stall over the better of LRU and GDSF. `validation`: of the set's
// prefix-shared cache as well, or null.
void MeasureZipf(const TraceSet* validation, Failures* failures, const Report& report);
// The same of the plan on pages, without hints, of the tuning set.
void MeasureZipfOnPages(Failures* failures, const Report& report);

// The time of three jobs with four pools, and with the device's and the host's alone, over one that
// no policy can beat: of today's core, and of the plan on pages; of these two DLRM's ratio.
void MeasurePools(Failures* failures, const Report& report);

// Time per event with 10^6 tensors, and events per second of a whole simulation.
void MeasurePlannerCost(double scale, const Report& report);
// Traces replayed by a real client on the host backend's slow link ($RAVENSTORE_DAEMON), against
// their simulated time.
void MeasureSimulatorTruth(double scale, const Report& report);

}  // namespace ravenstore::bench
