// Bytes per second, lately: what was added counts less and less, by e every kFor.
//
// Threads: one at a time. Cost: O(1).
#pragma once

#include <cmath>

#include "core/tuned.h"
#include "core/types.h"

namespace ravenstore::core {

class RecentRate {
 public:
  void Add(Bytes bytes, Tick now) {
    bytes_ = Left(now) + static_cast<double>(bytes.count());
    since_ = now;
  }
  double PerSecond(Tick now) const { return Left(now) / kRecentSeconds; }

 private:
  double Left(Tick now) const { return bytes_ * std::exp(-Seconds(now - since_) / kRecentSeconds); }

  double bytes_ = 0;
  Tick since_{};
};

}  // namespace ravenstore::core
