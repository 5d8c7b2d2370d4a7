// One plan for several clients of a device: their calls merged by time, and the plan's parts.
//
// The units of all clients get numbers of one sequence, so that the plan is made as that of one
// client.
//
// Owns: the merged calls and units. Units: as the plan. Threads: one at a time. Cost: as
// ResidencyPlan::Make for all calls together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/calls.h"
#include "core/plan/residency_plan.h"
#include "core/plan/units.h"

namespace ravenstore::core::plan {

class SharedPlan {
 public:
  // `clients` outlives the call of Build.
  explicit SharedPlan(std::span<const ResidencyPlan::Forecast> clients);
  // REQUIRES: is called once.
  std::vector<ResidencyPlan> Build(const PlanLimits& limits);

 private:
  struct Client {
    Unit first = 0;  // the number of its unit 0
    Unit end = 0;
    std::vector<Position> shared;  // its calls' positions among all; the last is that of the end
  };

  void NumberUnits();
  void MergeCalls();
  ResidencyPlan PartOf(const ResidencyPlan& whole, size_t client) const;

  std::span<const ResidencyPlan::Forecast> forecasts_;
  std::vector<Client> clients_;
  std::vector<PlannedCall> calls_;
  std::vector<Position> own_;  // by shared position: that of its client
  std::vector<UnitSnapshot> units_;
};

}  // namespace ravenstore::core::plan
