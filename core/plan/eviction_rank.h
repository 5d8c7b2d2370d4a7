// Which of two idle units leaves first: the one of lower priority, and of equal priority the one
// that is needed later.
//
// A unit has the highest priority of the tensors that live in it. Priorities rank the units of one
// client; between clients they say nothing.
//
// Owns: plain data. Units: positions.
#pragma once

#include <compare>

#include "core/events.h"
#include "core/plan/calls.h"

namespace ravenstore::core::plan {

// The larger leaves first.
constexpr int LeavingClass(Priority priority) {
  if (priority == Priority::kNormal) return 1;
  return priority == Priority::kLow ? 2 : 0;
}

struct EvictionRank {
  int leaving_class = LeavingClass(Priority::kNormal);
  Position need = kNoPosition;

  // The larger leaves first.
  auto operator<=>(const EvictionRank&) const = default;
};

}  // namespace ravenstore::core::plan
