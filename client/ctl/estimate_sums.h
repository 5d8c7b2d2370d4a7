// How right estimates were, by their source. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

struct EstimateSum {
  uint64_t count = 0;
  uint64_t under = 0;             // runs that took more than was reserved: estimate and margin
  double reserved_over_used = 0;  // of all together
  double mean_error = 0;          // of the estimates' sizes, relative to what was used: 0.1 is 10%
};

// Of the last estimate of each source of each command, where it took anything.
std::map<std::string, EstimateSum> SumEstimates(const std::vector<proto::JobRecord>& records);

// The error of the estimate, relative to what the job took; 0 if it took nothing.
double ErrorOf(const proto::JobEstimate& estimate);

}  // namespace ravenstore::client::ctl
