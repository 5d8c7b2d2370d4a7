// A client's foresight of all its calls, which a trace says beforehand.
//
// Owns: the places of all tensors. The trace outlives it. Units: as ClientForesight. Threads: one
// at a time. Cost: O(1) a call.
#pragma once

#include <memory>

#include "core/plan/calls.h"
#include "core/plan/residency_plan.h"
#include "core/schedule/client_foresight.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// A computation and a step are no calls.
bool IsCall(const Op& op);
// REQUIRES: IsCall().
core::plan::CallKind KindOf(const Op& op);

struct KnownPlaces {
  bool packs;      // by known lives; else places follow from the order of the calls
  bool has_slots;  // as ClientForesight
};

// `limits`: as ClientForesight.
std::unique_ptr<core::ClientForesight> ForesightOfTrace(const Trace& trace,
                                                        const core::plan::PlanLimits& limits,
                                                        const KnownPlaces& known);

}  // namespace ravenstore::sim
