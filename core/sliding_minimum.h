// The least that a quantity has been within a span of time up to now.
//
// What was seen holds until something else is: a look that comes late forgets nothing that was
// within the span.
//
// Threads: one at a time. Cost: O(1) amortised; memory by the number of looks within the span.
#pragma once

#include <deque>

#include "core/check.h"
#include "core/types.h"

namespace ravenstore::core {

class SlidingMinimum {
 public:
  explicit SlidingMinimum(Duration span) : span_(span) {}

  // The quantity is `value` from `now` on. REQUIRES: `now` is not before that of the last call.
  void Add(Tick now, Bytes value) {
    if (held_.empty()) {
      begin_ = now;
    } else {
      RAVEN_CHECK(now >= held_.back().until);
      held_.back().until = now;
    }
    while (!held_.empty() && held_.back().value >= value) held_.pop_back();
    while (!held_.empty() && held_.front().until < now - span_) held_.pop_front();
    held_.push_back({now, value});
  }

  // REQUIRES, here and below: something was added.
  Bytes least() const { return held_.front().value; }
  // Whether the whole span was seen.
  bool IsWhole() const { return held_.back().until - begin_ >= span_; }

 private:
  struct Held {
    Tick until;  // of the last one: when it was seen
    Bytes value;
  };

  Duration span_;
  Tick begin_{};
  std::deque<Held> held_;  // by time, and by value: who is larger than a later one does not count
};

}  // namespace ravenstore::core
