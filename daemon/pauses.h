// How long the planner loop was away from its clients: a histogram of the lengths of its passes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "core/types.h"

namespace ravenstore::daemon {

// Lengths fall into buckets an eighth of a power of two wide. Threads: one.
class Pauses {
 public:
  void Record(core::Duration length) {
    const uint64_t ns = length.count() > 0 ? static_cast<uint64_t>(length.count()) : 0;
    if (ns > longest_) longest_ = ns;
    ++counts_[Bucket(ns)];
    ++total_;
  }
  core::Duration Longest() const { return core::Duration(longest_); }
  // The length that at most `fraction` of the passes exceeded, rounded up to its bucket's end.
  core::Duration Quantile(double fraction) const {
    const auto rank = static_cast<uint64_t>(fraction * static_cast<double>(total_));
    uint64_t seen = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen > rank) return std::min(core::Duration(End(i)), Longest());
    }
    return Longest();
  }
  void Reset() { *this = Pauses(); }

 private:
  static constexpr int kPerOctave = 8;

  static size_t Bucket(uint64_t ns) {
    if (ns < kPerOctave) return ns;
    const int octave = std::bit_width(ns) - 4;  // 8..15 is octave 0
    return static_cast<size_t>(kPerOctave * (octave + 1)) + ((ns >> octave) & 7);
  }
  static uint64_t End(size_t bucket) {
    if (bucket < kPerOctave) return bucket;
    const size_t octave = bucket / kPerOctave - 1;
    return ((8 + bucket % kPerOctave + 1) << octave) - 1;
  }

  std::array<uint64_t, kPerOctave * 62> counts_{};
  uint64_t total_ = 0;
  uint64_t longest_ = 0;
};

}  // namespace ravenstore::daemon
