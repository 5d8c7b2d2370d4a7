// Predicts the bytes that the client creates soon: those that it created lately and has not freed.
//
// Creates are not announced. Without an expectation nothing would be copied out while a program
// fills its memory, and each create would wait for a copy.
//
// Owns: the creates of the last `window`, about 16 bytes for each tensor and each create.
// Units: bytes; the client's virtual time. Threads: one at a time. Cost: O(1) amortised a call.
#pragma once

#include <deque>
#include <utility>

#include "core/chunked.h"
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
  Chunked<Live, 256> live_;  // by tensor: of creates_, those that are not freed; else no bytes
  Bytes bytes_;              // of live_
};

}  // namespace ravenstore::core::plan
