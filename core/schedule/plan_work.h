// A plan that is to be made: the values that it follows from, apart from the clients that it is
// for.
//
// Owns: the values, and the plans when they are made. Units: pages, positions. Threads: Make() on
// any one; nothing else uses the work meanwhile. Cost: Make() as ResidencyPlan::Make.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/calls.h"
#include "core/plan/residency_plan.h"
#include "core/types.h"

namespace ravenstore::core {

struct PlanWork {
  // Of one client.
  struct Part {
    ClientId client{};
    uint64_t version = 0;  // as ClientForesight::version()
    std::vector<plan::PlannedCall> calls;
    std::vector<plan::UnitSnapshot> units;
    plan::ResidencyPlan plan{};  // when it is made
  };

  plan::PlanLimits limits;
  bool is_shared = false;  // of all clients; else of one
  std::vector<Part> parts;

  void Make();
};

}  // namespace ravenstore::core
