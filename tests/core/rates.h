// Topologies of planners under test.
#pragma once

#include <vector>

#include "core/planner.h"
#include "core/topology.h"

namespace ravenstore::core {

// The devices of `options` joined to its host pool, each at its rate of `bytes_per_second` both
// ways.
inline Topology DevicesAtRates(const PlannerOptions& options,
                               const std::vector<double>& bytes_per_second) {
  std::vector<LinkModel> links;
  for (const double rate : bytes_per_second) {
    links.push_back({.up_bytes_per_second = rate, .down_bytes_per_second = rate});
  }
  return DevicesAroundHost(options.device_capacity, options.host_capacity, options.granularity,
                           links)
      .value();
}

// The same with one rate for all.
inline Topology DevicesAtRate(const PlannerOptions& options, double bytes_per_second) {
  return DevicesAtRates(options,
                        std::vector<double>(options.device_capacity.size(), bytes_per_second));
}

}  // namespace ravenstore::core
