// The plan's figures: how well it decides, in the simulator, and whether the simulator agrees with
// a real client.
#pragma once

#include <functional>
#include <string>

#include "bench/figure.h"
#include "bench/planner_sets.h"
#include "sim/outcome.h"
#include "sim/setup.h"

namespace ravenstore::bench {

// Replays that did not get through, and where.
struct Failures {
  int failed = 0;
  std::string where;

  void Take(const sim::Outcome& outcome, const std::string& case_name);
};

// How much longer the same takes where nothing moves before it must, and all of it: demand paging.
class LruRatios {
 public:
  void Take(const sim::Outcome& demand, const sim::Outcome& hinted, const sim::Outcome& learned,
            const std::string& case_name);
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

// Of the traces at the level of kernels: at 50, 70 and 90% of the footprint what is computed and
// stalled without hints, once it is learned, over the same with hints (the better of time and
// order), the worst.
void MeasureKernelLevel(bool table, Failures* failures, const Report& report);
// Replays a trace on the machine, budget and pools of `setup`; the budget is rounded down to
// sim::kBudgetUnit.
sim::Outcome ReplayOnPages(const sim::Trace& trace, sim::ReplaySetup setup,
                           sim::Foresight foresight);
// Replays a trace on this machine with this budget; `hinted`: its puts have hints.
using Replay = std::function<sim::Outcome(const sim::Trace& trace, const sim::Hardware& hardware,
                                          core::Bytes budget, bool hinted)>;
// The plan's, which knows hints and what it learns.
Replay ReplayOnPagesByHints();

// The same traces, two iterations, at 115 to 170% of their largest step: what gets through at all.
void ReplayTight(Failures* failures);
// Those of a set that only judges.
void ReplayTight(const TraceSet& judge, Failures* failures);

// Stall of two tenants over the greedy oracle's, and whether each has its share.
void MeasureTwoTenants(const Report& report);
// Of what is read by chance: stall, without hints, over the better of LRU and GDSF, whose copies
// out take no time. `validation`: of the set's prefix-shared cache as well, or null.
void MeasureZipf(const TraceSet* validation, Failures* failures, const Report& report);

// The time of three jobs with four pools, and with the device's and the host's alone, over one that
// no policy can beat.
void MeasurePools(Failures* failures, const Report& report);

// Traces replayed by a real client on the host backend's slow link ($RAVENSTORE_DAEMON), against
// their simulated time.
void MeasureSimulatorTruth(double scale, const Report& report);

}  // namespace ravenstore::bench
