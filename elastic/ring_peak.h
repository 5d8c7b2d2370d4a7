// The largest of a stretch of the last numbers of a row that only grows.
//
// Over every 64 numbers, and every 64 of those, the largest is kept.
//
// Owns: 8 bytes a number. Threads: one at a time. Cost: Append() O(1); Peak() some 250 steps at
// most for 2^18 numbers, and one for each 4096 beyond.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ravenstore::elastic {

class RingPeak {
 public:
  // What Peak() may not reach back to: so many of the oldest, whose summaries are being replaced.
  static constexpr uint64_t kMargin = 4096;
  // Peak() of such a stretch, from a multiple of its length on, is found at once.
  static constexpr uint64_t kBlock = 64;

  // REQUIRES: `slots` is a power of two, and at least twice kMargin.
  explicit RingPeak(size_t slots)
      : mask_(slots - 1),
        values_(std::make_unique_for_overwrite<uint64_t[]>(slots)),
        blocks_(std::make_unique_for_overwrite<uint64_t[]>(slots / kBlock)),
        groups_(std::make_unique_for_overwrite<uint64_t[]>(slots / kGroup)) {}

  // As the number `at`, one more than the last.
  void Append(uint64_t at, uint64_t value) {
    const uint64_t slot = at & mask_;
    values_[slot] = value;
    uint64_t& block = blocks_[slot / kBlock];
    block = slot % kBlock == 0 ? value : std::max(block, value);
    uint64_t& group = groups_[slot / kGroup];
    group = slot % kGroup == 0 ? value : std::max(group, value);
  }
  uint64_t operator[](uint64_t at) const { return values_[at & mask_]; }

  // Of [from, end); 0 if there is none.
  uint64_t Peak(uint64_t from, uint64_t end) const {
    uint64_t peak = 0;
    while (from < end) {
      const uint64_t slot = from & mask_;
      if (slot % kGroup == 0 && end - from >= kGroup) {
        peak = std::max(peak, groups_[slot / kGroup]);
        from += kGroup;
      } else if (slot % kBlock == 0 && end - from >= kBlock) {
        peak = std::max(peak, blocks_[slot / kBlock]);
        from += kBlock;
      } else {
        peak = std::max(peak, values_[slot]);
        ++from;
      }
    }
    return peak;
  }

 private:
  static constexpr uint64_t kGroup = 4096;

  uint64_t mask_;
  std::unique_ptr<uint64_t[]> values_;
  std::unique_ptr<uint64_t[]> blocks_;
  std::unique_ptr<uint64_t[]> groups_;
};

}  // namespace ravenstore::elastic
