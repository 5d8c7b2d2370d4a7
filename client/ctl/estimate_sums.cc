#include "client/ctl/estimate_sums.h"

#include <cmath>

namespace ravenstore::client::ctl {

double ErrorOf(const proto::JobEstimate& estimate) {
  if (estimate.actual() == 0) return 0;
  return static_cast<double>(estimate.bytes()) / static_cast<double>(estimate.actual()) - 1;
}

std::map<std::string, EstimateSum> SumEstimates(const std::vector<proto::JobRecord>& records) {
  std::map<std::string, EstimateSum> sums;
  std::map<std::string, double> reserved;
  std::map<std::string, double> used;
  for (const proto::JobRecord& record : records) {
    for (const proto::JobEstimate& estimate : record.estimates()) {
      if (estimate.actual() == 0) continue;
      EstimateSum& sum = sums[estimate.source()];
      ++sum.count;
      sum.under += estimate.actual() > estimate.reserved() ? 1 : 0;
      sum.mean_error += std::abs(ErrorOf(estimate));
      reserved[estimate.source()] += static_cast<double>(estimate.reserved());
      used[estimate.source()] += static_cast<double>(estimate.actual());
    }
  }
  for (auto& [source, sum] : sums) {
    sum.mean_error /= static_cast<double>(sum.count);
    sum.reserved_over_used = reserved[source] / used[source];
  }
  return sums;
}

}  // namespace ravenstore::client::ctl
