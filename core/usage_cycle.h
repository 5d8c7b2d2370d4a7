// How what a client holds rises and falls, in cycles such as training's iterations: when it is at
// its top, how high that is, and where its largest create comes.
//
// Time is the client's own, which stands while it waits for the store. A cycle begins with the
// first create near the bottom after half the way up.
//
// Threads: one at a time. Cost: O(1).
#pragma once

#include <algorithm>
#include <optional>

#include "core/recent_range.h"
#include "core/tuned.h"
#include "core/types.h"

namespace ravenstore::core {

class UsageCycle {
 public:
  // Whether a create would begin a cycle. `live`: what is alive before it; `lived`: after each of
  // the last creates.
  bool Begins(Bytes live, const RecentRange& lived) const {
    const Bytes swing = lived.most() - lived.least();
    return live <= lived.least() + Bytes(swing.count() / kLowShare) &&
           now_.top >= lived.least() + Bytes(swing.count() / kTopShare) && begun_;
  }
  // A create, with the bytes alive before and after it.
  void Created(Bytes before, Bytes after, const RecentRange& lived, Tick virtual_time) {
    if (!begun_ || Begins(before, lived)) {
      if (begun_) last_ = now_;
      now_ = {.bottom = before, .top = before};
      begun_ = virtual_time;
    }
    if (after - before > now_.largest) {
      now_.largest = after - before;
      now_.largest_at = before;
    }
    if (after > now_.top) {
      now_.top = after;
      now_.rise = virtual_time - *begun_;
    }
  }

  struct Peak {
    Bytes bottom{};
    Bytes top{};
    Duration rise{};     // from the cycle's beginning to its top
    Bytes largest{};     // create,
    Bytes largest_at{};  // the bytes alive before it

    Bytes swing() const { return top - bottom; }
    // No more than half of it has come.
    bool IsFar(Bytes live) const { return live <= bottom + Bytes(swing().count() / 2); }
  };
  // Of the last whole cycle.
  const std::optional<Peak>& last() const { return last_; }
  // Until the top, if this cycle is as the last; zero: it is over.
  Duration UntilTop(Tick virtual_time) const {
    if (!last_) return Duration{0};
    return std::max(Duration{0}, last_->rise - (virtual_time - *begun_));
  }

 private:
  std::optional<Tick> begun_;
  Peak now_;
  std::optional<Peak> last_;
};

}  // namespace ravenstore::core
