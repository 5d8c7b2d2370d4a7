#include "core/decide/plan_drift.h"

#include <algorithm>
#include <chrono>

namespace ravenstore::core::decide {

namespace {

// Clients may drift apart by this. Less: more plans. More: calls come in another order than the
// plan's.
constexpr Duration kDriftLeast = std::chrono::milliseconds(1);

}  // namespace

PlanClock ClockOf(const plan::ResidencyPlan& plan) {
  const plan::Position position = plan.position();
  return {.last = position == 0 ? Duration{0} : plan.TimeOf(position - 1),
          .next = plan.TimeOf(position)};
}

bool HaveDrifted(std::span<const PlanClock> clients) {
  Duration first = Duration::max();
  Duration last{0};
  for (const PlanClock& client : clients) {
    first = std::min(first, client.next);
    last = std::max(last, client.last);
  }
  return last > first && last - first > kDriftLeast;
}

}  // namespace ravenstore::core::decide
