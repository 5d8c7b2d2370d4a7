// Whether clients that follow one plan make their calls in another order than the plan's.
//
// A client is somewhere between its last call and its next one. Clients have drifted apart if one
// has made a call that comes later in the plan than the next call of another.
//
// Owns: nothing. Units: times from the plan's beginning. Threads: any. Errors: none.
// Cost: O(clients).
#pragma once

#include <span>

#include "core/plan/residency_plan.h"
#include "core/types.h"

namespace ravenstore::core::decide {

struct PlanClock {
  Duration last{0};  // of the last call
  Duration next{0};  // of the next one
};

PlanClock ClockOf(const plan::ResidencyPlan& plan);
// The clients have drifted apart, and need another plan.
bool HaveDrifted(std::span<const PlanClock> clients);

}  // namespace ravenstore::core::decide
