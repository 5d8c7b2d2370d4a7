#include "core/schedule/client_foresight.h"

#include <algorithm>

namespace ravenstore::core {

using plan::CallKind;
using plan::PlannedCall;
using plan::Position;

ClientForesight::ClientForesight(const plan::PlanLimits& limits, bool has_slots)
    : places_({.page = limits.page}),
      has_slots_(has_slots),
      neighbours_(limits.page, limits.page * limits.pages) {}

void ClientForesight::WatchUse(CallKind kind, plan::TensorIndex tensor, Bytes size) {
  if (!has_slots_) return;
  if (kind == CallKind::kCreate) neighbours_.Created(tensor, size, places_.rule().IsSmall(size));
  if (kind == CallKind::kGet) neighbours_.Got(tensor, size);
  if (kind == CallKind::kFree) neighbours_.Freed(tensor);
  places_.SetLargestSlot(neighbours_.LargestSlot());
}

void ClientForesight::SetCalls(std::vector<PlannedCall> calls) {
  calls_ = std::move(calls);
  set_begin_ -= position_;
  next_begin_ -= position_;
  position_ = 0;
}

std::vector<PlannedCall> ClientForesight::BeginPlan(bool made) {
  ++version_;
  next_begin_ =
      std::min<Position>(position_ + (made ? 1 : 0), static_cast<Position>(calls_.size()));
  std::vector<PlannedCall> ahead(calls_.begin() + next_begin_, calls_.end());
  const Duration last = position_ > 0 ? calls_[static_cast<size_t>(position_) - 1].at : Duration{0};
  for (PlannedCall& call : ahead) call.at = std::max(Duration{0}, call.at - last);
  return ahead;
}

void ClientForesight::MoveTo(Position position, PageBooks* books) {
  position_ = std::min(position, static_cast<Position>(calls_.size()));
  books->MoveTo(std::max<Position>(0, position_ - set_begin_));
}

void ClientForesight::SetPlan(plan::ResidencyPlan* plan, bool is_shared) {
  ++stats_.plans;
  stats_.shared_plans += is_shared ? 1 : 0;
  stats_.over_budget += plan->over_budget();
  set_begin_ = next_begin_;
  std::vector<plan::Unit> passed;
  plan->MoveTo(std::max<Position>(0, position_ - set_begin_), &passed);
}

ForesightStats ClientForesight::stats() const {
  ForesightStats stats = stats_;
  stats.range_end = places_.range_end();
  return stats;
}

void ForesightStats::Add(const ForesightStats& other) {
  plans += other.plans;
  shared_plans += other.shared_plans;
  over_budget += other.over_budget;
  creates += other.creates;
  elsewhere += other.elsewhere;
  compared += other.compared;
  found += other.found;
  range_end += other.range_end;
}

}  // namespace ravenstore::core
