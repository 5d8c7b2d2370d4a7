// The planner's figures: how well it decides, in the simulator, what deciding costs, and whether
// the simulator tells the truth.
#pragma once

#include <functional>

#include "bench/figure.h"

namespace ravenstore::bench {

using Report = std::function<void(const Figure&)>;

// Every generated trace under every feasible budget (sim/score.h): the worst of each kind, of
// the replays that got through; the others have a figure of their own. `table`: prints each case as
// a line of a markdown table instead.
void MeasurePlannerScores(bool table, const Report& report);

// Of the traces at the level of kernels: at 50, 70 and 90% of the footprint what is computed and
// stalled without hints, once it is learned, over the same with hints (the better of time and
// order), the worst; and all replays that did not get through, also at little more than the
// largest step.
struct KernelLevel {
  double learned_over_hinted = 0;
  std::string worst;
  int failed = 0;
  int endless = 0;  // of those: somebody waited for ever
  std::string failures;
};
KernelLevel MeasureKernelLevel(bool table);
// Time per event with 10^6 tensors, and events per second of a whole simulation.
void MeasurePlannerCost(double scale, const Report& report);
// Traces replayed by a real client on the host backend's slow link ($RAVENSTORE_DAEMON), against
// their simulated time.
void MeasureSimulatorTruth(double scale, const Report& report);

}  // namespace ravenstore::bench
