#include "core/execution/tensor_words.h"

#include <algorithm>
#include <iterator>

namespace ravenstore::core {

using plan::Unit;
using plan::UnitSpan;

bool TensorWords::IsResident(TensorNumber tensor) const {
  const UnitSpan& units = (*tensors_)[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    if (!books_[units[i]].IsResident()) return false;
  }
  return true;
}

std::optional<Unit> TensorWords::Revoke(std::span<const Unit> units) {
  for (size_t i = 0; i < units.size(); ++i) {
    for (const TensorNumber tensor : tensors_->In(units[i])) {
      PageTensors::Row& row = (*tensors_)[tensor];
      if (row.away) continue;
      if (!backend_->Revoke(tensor, row.uses)) {
        Publish(units.first(i + 1));
        return units[i];
      }
      row.away = true;
    }
  }
  return std::nullopt;
}

std::vector<TensorNumber> TensorWords::RevokeRecomputed(Unit unit) {
  std::vector<TensorNumber> revoked;
  for (const TensorNumber tensor : tensors_->In(unit)) {
    PageTensors::Row& row = (*tensors_)[tensor];
    if (!row.recomputes || row.pinned) continue;
    if (!row.away && !backend_->Revoke(tensor, row.uses)) continue;
    row.away = true;
    revoked.push_back(tensor);
  }
  return revoked;
}

void TensorWords::Publish(std::span<const Unit> units) {
  for (const Unit unit : units) {
    for (const TensorNumber tensor : tensors_->In(unit)) Publish(tensor);
  }
}

void TensorWords::Publish(TensorNumber tensor) {
  PageTensors::Row& row = (*tensors_)[tensor];
  if (!row.away || !IsResident(tensor)) return;
  row.away = false;
  if (waiting_.count(tensor) == 0) backend_->Publish(tensor);
}

void TensorWords::Arrive(std::span<const PageBooks::Arrival> arrivals) {
  for (const auto& arrival : arrivals) Publish(std::span(&arrival.unit, 1));
  if (arrivals.empty()) return;
  const auto is_resident = [this](TensorNumber tensor) { return IsResident(tensor); };
  for (const TensorNumber tensor : Take(&granted_early_, is_resident)) backend_->Arrived(tensor);
  for (const TensorNumber tensor : Take(&waiting_, is_resident)) backend_->Grant(tensor);
}

void TensorWords::GrantWaitingEarly() {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const TensorNumber tensor = *next;
    // One early grant for a tensor: a call that waits while there is one is for a move.
    if (IsGrantedEarly(tensor) || !Arrives(tensor) || !backend_->GrantEarly(tensor)) {
      ++next;
      continue;
    }
    next = waiting_.erase(next);
    granted_early_.insert(tensor);
    (*tensors_)[tensor].away = false;
  }
}

bool TensorWords::Arrives(TensorNumber tensor) const {
  if (!(*tensors_)[tensor].lives()) return false;
  const UnitSpan& units = (*tensors_)[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    const plan::UnitState& state = books_[units[i]];
    if (!state.IsResident() && state.life != PageState::kArriving) return false;
  }
  return true;
}

std::vector<TensorNumber> TensorWords::TakeWaiting(Unit unit) {
  return Take(&waiting_, [&](TensorNumber tensor) { return IsIn(tensor, unit); });
}

std::vector<TensorNumber> TensorWords::TakeGrantedEarly(Unit unit) {
  return Take(&granted_early_, [&](TensorNumber tensor) { return IsIn(tensor, unit); });
}

template <typename Matches>
std::vector<TensorNumber> TensorWords::Take(std::set<TensorNumber>* from, Matches matches) {
  std::vector<TensorNumber> taken;
  std::copy_if(from->begin(), from->end(), std::back_inserter(taken), matches);
  for (const TensorNumber tensor : taken) from->erase(tensor);
  return taken;
}

}  // namespace ravenstore::core
