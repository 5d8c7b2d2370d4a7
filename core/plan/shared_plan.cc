#include "core/plan/shared_plan.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

namespace ravenstore::core::plan {

SharedPlan::SharedPlan(std::span<const ResidencyPlan::Forecast> clients)
    : forecasts_(clients), clients_(clients.size()) {
  NumberUnits();
  MergeCalls();
}

void SharedPlan::NumberUnits() {
  Unit next = 0;
  for (size_t i = 0; i < forecasts_.size(); ++i) {
    size_t count = forecasts_[i].units.size();
    for (const PlannedCall& call : forecasts_[i].calls)
      count = std::max<size_t>(count, call.units.end());
    count += count % 2;  // pages stay even, slots odd
    clients_[i].first = next;
    next += static_cast<Unit>(count);
    clients_[i].end = next;
  }
  units_.resize(next);
  for (size_t i = 0; i < forecasts_.size(); ++i)
    std::copy(forecasts_[i].units.begin(), forecasts_[i].units.end(),
              units_.begin() + clients_[i].first);
}

void SharedPlan::MergeCalls() {
  // The first client's call goes first of those at the same time.
  using Next = std::tuple<Duration, size_t, size_t>;  // time, client, its call
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  for (size_t i = 0; i < forecasts_.size(); ++i) {
    if (!forecasts_[i].calls.empty()) next.push({forecasts_[i].calls.front().at, i, 0});
  }
  while (!next.empty()) {
    const auto [at, client, number] = next.top();
    next.pop();
    const auto& calls = forecasts_[client].calls;
    PlannedCall call = calls[number];
    if (call.units.count > 0) call.units.first += clients_[client].first;
    clients_[client].shared.push_back(static_cast<Position>(calls_.size()));
    own_.push_back(static_cast<Position>(number));
    calls_.push_back(call);
    if (number + 1 < calls.size())
      next.push({std::max(at, calls[number + 1].at), client, number + 1});
  }
  for (Client& client : clients_) client.shared.push_back(static_cast<Position>(calls_.size()));
}

std::vector<ResidencyPlan> SharedPlan::Build(const PlanLimits& limits) {
  const ResidencyPlan whole = ResidencyPlan::Make(calls_, units_, limits);
  std::vector<ResidencyPlan> parts;
  for (size_t i = 0; i < clients_.size(); ++i) parts.push_back(PartOf(whole, i));
  return parts;
}

ResidencyPlan SharedPlan::PartOf(const ResidencyPlan& whole, size_t client) const {
  const Client& of = clients_[client];
  const auto own = [&](Position shared) {
    return shared == kNoPosition ? kNoPosition : own_[static_cast<size_t>(shared)];
  };
  ResidencyPlan part;
  part.calls_.assign(forecasts_[client].calls.begin(), forecasts_[client].calls.end());
  for (Unit unit = of.first; unit < of.end; ++unit) {
    part.first_gap_.push_back(static_cast<uint32_t>(part.gaps_.size()));
    for (ResidencyPlan::Gap gap : whole.GapsOf(unit)) {
      gap.need = own(gap.need);
      gap.dies = own(gap.dies);
      // Another client's call may be the one that it leaves for: it has left before the next one of
      // its own.
      if (gap.leaves != kNoPosition)
        gap.leaves = std::lower_bound(of.shared.begin(), of.shared.end() - 1, gap.leaves) -
                     of.shared.begin();
      part.gaps_.push_back(gap);
    }
  }
  part.first_gap_.push_back(static_cast<uint32_t>(part.gaps_.size()));
  part.now_.assign(part.first_gap_.begin(), part.first_gap_.end() - 1);
  part.slack_ = whole.slack_;
  part.shared_ = of.shared;
  part.pages_held_ = whole.pages_held_;
  part.pages_alive_ = whole.pages_alive_;
  part.over_budget_ = whole.over_budget_;
  return part;
}

}  // namespace ravenstore::core::plan
