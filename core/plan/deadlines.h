// Whether all that is away and expected can still be in time, if links did nothing else. Each pool
// for copies has a link of its own.
//
// A unit that is away has a deadline: the time of the call that needs it. The copies of all units
// with deadlines up to a position must fit before its time.
//
// Source: the demand bound test of earliest-deadline-first schedules (Baruah et al., 1990).
//
// Owns: each unit's deadline and copy time. Units: nanoseconds of the plan's time.
// Threads: one at a time. Cost: O(log calls) a call, O(calls) for a new plan.
#pragma once

#include <vector>

#include "core/plan/calls.h"
#include "core/plan/range_minimum.h"
#include "core/plan/residency_plan.h"
#include "core/plan/units.h"
#include "core/types.h"

namespace ravenstore::core::plan {

class Deadlines {
 public:
  explicit Deadlines(PoolNumber pools = 1) : spare_(pools) {}
  // Forgets all units.
  void Restart(const ResidencyPlan& plan);
  // The unit is away and needed at `need`; its copy from the pool takes `copy`. Beyond the horizon
  // it counts not.
  void Set(Unit unit, Position need, PoolNumber pool, Duration copy);
  void Clear(Unit unit);
  // Some unit would be late from the plan's position on.
  bool IsLate(const ResidencyPlan& plan) const;

 private:
  struct Deadline {
    Position need = kNoPosition;
    PoolNumber pool = 0;
    Duration copy{0};
  };

  // By pool and position: its time, less what must have been copied by then.
  std::vector<RangeMinimum> spare_;
  std::vector<Deadline> deadlines_;
};

}  // namespace ravenstore::core::plan
