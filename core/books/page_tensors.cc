#include "core/books/page_tensors.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace ravenstore::core {

using plan::Unit;

void PageTensors::Place(TensorNumber tensor, const plan::UnitSpan& units, Bytes offset,
                        Bytes size) {
  rows_.GrowTo(tensor + 1);
  RAVEN_CHECK(rows_[tensor].life == Life::kNone);
  rows_[tensor] = {.units = units, .offset = offset, .size = size, .life = Life::kPlaced};
  if (units.end() > in_.size()) in_.resize(units.end());
}

void PageTensors::Hold(TensorNumber tensor) {
  Row& row = rows_[tensor];
  RAVEN_CHECK(row.life != Life::kNone);
  RAVEN_CHECK(!row.pinned);
  row.pinned = true;
  held_ += row.size;
  ++row.uses;
  if (row.life != Life::kPlaced && row.life != Life::kEnded) return;
  row.life = Life::kBegins;
  row.in_first = static_cast<uint32_t>(beginning_.size());
  beginning_.push_back(tensor);
}

void PageTensors::EndBeginning(TensorNumber tensor) {
  if (rows_[tensor].life != Life::kBegins) return;
  const TensorNumber last = beginning_.back();
  beginning_[rows_[tensor].in_first] = last;
  rows_[last].in_first = rows_[tensor].in_first;
  beginning_.pop_back();
}

void PageTensors::AbortBegin(TensorNumber tensor) {
  RAVEN_CHECK(rows_[tensor].life == Life::kBegins);
  EndBeginning(tensor);
  rows_[tensor].life = Life::kEnded;
}

void PageTensors::Remove(TensorNumber tensor) {
  EndBeginning(tensor);
  rows_[tensor] = {};
}

void PageTensors::EndHold(TensorNumber tensor) {
  Row& row = rows_[tensor];
  RAVEN_CHECK(std::exchange(row.pinned, false));
  row.in_place = false;
  held_ -= row.size;
}

void PageTensors::Begin(TensorNumber tensor) {
  Row& row = rows_[tensor];
  RAVEN_CHECK(row.life != Life::kNone && row.life != Life::kLives);
  EndBeginning(tensor);
  row.life = Life::kLives;
  for (uint32_t i = 0; i < row.units.count; ++i) {
    const Unit unit = row.units[i];
    if (uint32_t* const at = IndexIn(unit, tensor)) *at = static_cast<uint32_t>(in_[unit].size());
    in_[unit].push_back(tensor);
  }
}

uint32_t* PageTensors::IndexIn(Unit unit, TensorNumber tensor) {
  Row& row = rows_[tensor];
  if (unit == row.units.first) return &row.in_first;
  return unit + 1 == row.units.end() ? &row.in_last : nullptr;
}

void PageTensors::End(TensorNumber tensor) {
  Row& row = rows_[tensor];
  RAVEN_CHECK(row.life == Life::kLives);
  row.life = Life::kEnded;
  for (uint32_t i = 0; i < row.units.count; ++i) {
    const Unit unit = row.units[i];
    auto& tensors = in_[unit];
    const uint32_t* const known = IndexIn(unit, tensor);
    const size_t at = known != nullptr
                          ? *known
                          : static_cast<size_t>(std::find(tensors.begin(), tensors.end(), tensor) -
                                                tensors.begin());
    RAVEN_CHECK(at < tensors.size() && tensors[at] == tensor);
    const TensorNumber last = tensors.back();
    tensors.pop_back();
    if (last == tensor) continue;
    tensors[at] = last;
    if (uint32_t* const moved = IndexIn(unit, last)) *moved = static_cast<uint32_t>(at);
  }
}

void PageTensors::Clear() {
  cleared_ = std::exchange(rows_, {});
  in_.clear();
  beginning_.clear();
  held_ = Bytes{};
}

void PageTensors::Move(TensorNumber tensor, const plan::UnitSpan& slot) {
  End(tensor);
  Row& row = rows_[tensor];
  row.units = slot;
  row.offset = Bytes{};
  if (slot.end() > in_.size()) in_.resize(slot.end());
  Begin(tensor);
}

void PageTensors::SetPriority(TensorNumber tensor, Priority priority) {
  rows_[tensor].priority = priority;
  has_priorities_ |= priority != Priority::kNormal;
}

Priority PageTensors::PriorityIn(plan::Unit unit) const {
  bool all_low = !In(unit).empty();
  for (const TensorNumber tensor : In(unit)) {
    if (rows_[tensor].priority == Priority::kHigh) return Priority::kHigh;
    all_low &= rows_[tensor].priority == Priority::kLow;
  }
  return all_low ? Priority::kLow : Priority::kNormal;
}

Bytes PageTensors::BytesIn(TensorNumber tensor, uint32_t i) const {
  const Row& row = rows_[tensor];
  if (row.units.count == 1) return row.size;
  if (i == 0) return page_ - row.offset;
  return std::min(page_, row.size + row.offset - page_ * i);
}

}  // namespace ravenstore::core
