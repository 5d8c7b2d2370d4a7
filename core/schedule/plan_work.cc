#include "core/schedule/plan_work.h"

#include <utility>

namespace ravenstore::core {

using plan::ResidencyPlan;

void PlanWork::Make() {
  if (is_shared) {
    std::vector<ResidencyPlan::Forecast> forecasts;
    for (const Part& part : parts) forecasts.push_back({part.calls, part.units});
    auto plans = ResidencyPlan::MakeShared(forecasts, limits);
    for (size_t i = 0; i < parts.size(); ++i) parts[i].plan = std::move(plans[i]);
  } else {
    parts.front().plan = ResidencyPlan::Make(parts.front().calls, parts.front().units, limits);
  }
  // Here, since the scheduler's thread has no time for it.
  for (Part& part : parts) {
    part.calls = {};
    part.units = {};
  }
}

}  // namespace ravenstore::core
