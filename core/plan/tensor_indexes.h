// The index of each tensor of a client, from the row that the tensor has in the client's table.
//
// A client reuses a row immediately after a free. The call history still knows the freed tensor
// then. So a tensor has an index that no other tensor has until the history forgets it. The plans
// are the same whether rows are reused or not.
//
// Owns: the index of each row. Units: rows, indexes. Threads: one at a time. Errors: none.
// Cost: O(1). Memory: 4 bytes for each row that was used, and for each index; there are as many
// indexes as tensors that live or that the history knows, up to a constant factor.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/plan/call_history.h"

namespace ravenstore::core::plan {

class TensorIndexes {
 public:
  // A tensor is created in the row. REQUIRES: the row has none.
  TensorIndex Add(uint32_t row, const CallHistory& history);
  bool Has(uint32_t row) const {
    return row < of_row_.size() && of_row_[row] != CallHistory::kNoTensor;
  }
  // REQUIRES: the row has a tensor.
  TensorIndex Of(uint32_t row) const;
  // The row has none any more. REQUIRES: the history has the tensor's free.
  void Remove(uint32_t row);
  // One more than the largest index.
  TensorIndex end() const { return end_; }

 private:
  std::vector<TensorIndex> of_row_;
  std::deque<TensorIndex> removed_;  // in order; the history forgets them in nearly this order
  TensorIndex end_ = 0;
};

}  // namespace ravenstore::core::plan
