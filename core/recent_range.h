// The most and the least of what was seen lately, exactly: of the last kFor samples at least, of
// twice as many at most. Zero before the first.
//
// Threads: one at a time. Cost: O(1).
#pragma once

#include <algorithm>
#include <utility>

#include "core/tuned.h"
#include "core/types.h"

namespace ravenstore::core {

class RecentRange {
 public:
  void Add(Bytes sample) {
    if (now_.samples == kRecentSamples) before_ = std::exchange(now_, {});
    now_.Add(sample);
  }
  Bytes most() const { return std::max(now_.most, before_.most); }
  Bytes least() const {
    return before_.samples == 0 ? now_.least : std::min(now_.least, before_.least);
  }

 private:
  struct Window {
    uint32_t samples = 0;
    Bytes most;
    Bytes least;

    void Add(Bytes sample) {
      least = samples++ == 0 ? sample : std::min(least, sample);
      most = std::max(most, sample);
    }
  };

  Window now_;
  Window before_;
};

}  // namespace ravenstore::core
