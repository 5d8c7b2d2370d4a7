// The validation set: traces that no choice of the planner's is made on, kernel by kernel as those
// of sim/kernel_traces.h.
//
// They judge it. A set that is tuned by, or looked into case by case, judges no more.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/hardware.h"
#include "sim/trace.h"

namespace ravenstore::sim {

struct ValidationTrace {
  std::string name;
  std::string what;
  bool periodic;
  Trace (*generate)(const Hardware& hardware, int iterations, uint64_t seed);
};
// In the order of reports.
const std::vector<ValidationTrace>& ValidationTraces();

// Both together, as clients 0 and 1. REQUIRES: each is of one client and names no calls.
Trace Merge(std::string name, Trace one, Trace other);

}  // namespace ravenstore::sim
