// Predicts the bytes that the client creates soon: those that it created lately and has not freed.
//
// Creates are not announced. Without an expectation nothing would be copied out while a program
// fills its memory, and each create would wait for a copy.
//
// Owns: the tensors that were created in the last `window`, about 80 bytes for each. Units: bytes;
// the client's virtual time. Threads: one at a time. Cost: O(1) amortised a call.
#pragma once

#include <deque>
#include <unordered_map>
#include <utility>

#include "core/plan/call_history.h"
#include "core/types.h"

namespace ravenstore::core::plan {

class Growth {
 public:
  explicit Growth(Duration window) : window_(window) {}

  void Created(TensorIndex tensor, Bytes size, Duration now);
  void Freed(TensorIndex tensor) { Remove(tensor); }
  // The bytes that are expected in the next `window`.
  Bytes At(Duration now);
  Duration window() const { return window_; }

 private:
  struct Live {
    Bytes size;
    Duration created;
  };

  void Remove(TensorIndex tensor);
  // Of creates that are older than the window.
  void RemoveExpired(Duration now);

  const Duration window_;
  std::deque<std::pair<TensorIndex, Duration>> creates_;
  std::unordered_map<TensorIndex, Live> live_;  // of creates_, those that are not freed
  Bytes bytes_;                                 // of live_
};

}  // namespace ravenstore::core::plan
