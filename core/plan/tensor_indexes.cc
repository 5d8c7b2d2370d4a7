#include "core/plan/tensor_indexes.h"

#include "core/check.h"

namespace ravenstore::core::plan {

TensorIndex TensorIndexes::Add(uint32_t row, const CallHistory& history) {
  if (row >= of_row_.size()) of_row_.resize(row + 1, CallHistory::kNoTensor);
  TensorIndex& index = of_row_[row];
  RAVEN_CHECK(index == CallHistory::kNoTensor);
  if (removed_.empty() || history.Knows(removed_.front())) return index = end_++;
  index = removed_.front();
  removed_.pop_front();
  return index;
}

TensorIndex TensorIndexes::Of(uint32_t row) const {
  RAVEN_CHECK(Has(row));
  return of_row_[row];
}

void TensorIndexes::Remove(uint32_t row) {
  removed_.push_back(Of(row));
  of_row_[row] = CallHistory::kNoTensor;
}

}  // namespace ravenstore::core::plan
