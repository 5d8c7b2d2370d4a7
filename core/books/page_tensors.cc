#include "core/books/page_tensors.h"

#include <algorithm>

#include "core/check.h"

namespace ravenstore::core {

void PageTensors::Place(TensorNumber tensor, const plan::UnitSpan& units, Bytes offset,
                        Bytes size) {
  if (tensor >= rows_.size()) rows_.resize(tensor + 1);
  RAVEN_CHECK(rows_[tensor].life == Life::kNone);
  rows_[tensor] = {.units = units, .offset = offset, .size = size, .life = Life::kPlaced};
  if (units.end() > in_.size()) in_.resize(units.end());
}

void PageTensors::Hold(TensorNumber tensor) {
  Row& row = rows_[tensor];
  RAVEN_CHECK(row.life != Life::kNone);
  RAVEN_CHECK(!row.pinned);
  row.pinned = true;
  ++row.uses;
  if (row.life == Life::kPlaced) row.life = Life::kBegins;
}

void PageTensors::Begin(TensorNumber tensor) {
  Row& row = rows_[tensor];
  RAVEN_CHECK(row.life != Life::kNone && row.life != Life::kLives);
  row.life = Life::kLives;
  for (uint32_t i = 0; i < row.units.count; ++i) in_[row.units[i]].push_back(tensor);
}

void PageTensors::End(TensorNumber tensor) {
  Row& row = rows_[tensor];
  RAVEN_CHECK(row.life == Life::kLives);
  row.life = Life::kEnded;
  for (uint32_t i = 0; i < row.units.count; ++i) {
    // Programs free what they made last more often than what they made first.
    auto& tensors = in_[row.units[i]];
    const auto found = std::find(tensors.rbegin(), tensors.rend(), tensor);
    RAVEN_CHECK(found != tensors.rend());
    *found = tensors.back();
    tensors.pop_back();
  }
}

void PageTensors::Move(TensorNumber tensor, const plan::UnitSpan& slot) {
  End(tensor);
  Row& row = rows_[tensor];
  row.units = slot;
  row.offset = Bytes{};
  if (slot.end() > in_.size()) in_.resize(slot.end());
  Begin(tensor);
}

Bytes PageTensors::BytesIn(TensorNumber tensor, uint32_t i) const {
  const Row& row = rows_[tensor];
  if (row.units.count == 1) return row.size;
  if (i == 0) return page_ - row.offset;
  return std::min(page_, row.size + row.offset - page_ * i);
}

}  // namespace ravenstore::core
