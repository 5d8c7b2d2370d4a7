// The most that was seen lately: over the last kCalls values at least, and twice as many at most.
//
// Owns: two values. Units: the caller's. Threads: one at a time. Errors: none. Cost: O(1).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/plan/call_history.h"

namespace ravenstore::core {

class RecentPeak {
 public:
  // A pass of more calls than the history keeps is not followed, so that no plan knows its peak.
  static constexpr plan::CallNumber kCalls = plan::CallHistory::kCallsMax;

  void Add(uint32_t value) {
    if (++calls_ == kCalls) {
      before_ = now_;
      now_ = 0;
      calls_ = 0;
    }
    now_ = std::max(now_, value);
  }
  uint32_t value() const { return std::max(before_, now_); }

 private:
  plan::CallNumber calls_ = 0;  // that now_ is of
  uint32_t now_ = 0;
  uint32_t before_ = 0;
};

}  // namespace ravenstore::core
