// A set of small numbers in order: the next member and the one before any number are found at once.
//
// A bit for each number, and over each 64 words of bits a word that says which of them hold any, up
// to a single word: of a million numbers there are four levels.
//
// Threads: one at a time. Cost: O(levels), no allocation but by Grow().
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ravenstore::elastic {

class SlotSet {
 public:
  explicit SlotSet(size_t slots = 0) { Grow(slots); }

  // Numbers below `slots` may be members from now on.
  void Grow(size_t slots) {
    size_t words = std::max<size_t>(1, (slots + kBits - 1) / kBits);
    for (size_t level = 0;; ++level) {
      if (level == levels_.size()) {
        levels_.emplace_back(words, 0);
        // What the new top is to say of the level below, which had one word so far.
        if (level > 0 && levels_[level - 1].front() != 0) levels_[level].front() = 1;
      } else if (levels_[level].size() < words) {
        levels_[level].resize(words, 0);
      }
      if (words == 1) return;
      words = (words + kBits - 1) / kBits;
    }
  }

  void Add(size_t slot) {
    for (auto& level : levels_) {
      uint64_t& word = level[slot / kBits];
      const bool was_empty = word == 0;
      word |= BitOf(slot);
      if (!was_empty) return;
      slot /= kBits;
    }
  }
  void Remove(size_t slot) {
    for (auto& level : levels_) {
      uint64_t& word = level[slot / kBits];
      word &= ~BitOf(slot);
      if (word != 0) return;
      slot /= kBits;
    }
  }
  bool Holds(size_t slot) const { return (levels_[0][slot / kBits] & BitOf(slot)) != 0; }
  bool empty() const { return levels_.back().front() == 0; }

  // The least member that is at least `from`.
  std::optional<size_t> Next(size_t from) const {
    for (size_t level = 0; level < levels_.size(); ++level) {
      const size_t word = from / kBits;
      if (word >= levels_[level].size()) return std::nullopt;
      const uint64_t bits = levels_[level][word] & ~uint64_t{0} << from % kBits;
      if (bits != 0) {
        from = word * kBits + First(bits);
        while (level-- > 0) from = from * kBits + First(levels_[level][from]);
        return from;
      }
      from = word + 1;
    }
    return std::nullopt;
  }
  // The largest member that is at most `from`.
  std::optional<size_t> Previous(size_t from) const {
    for (size_t level = 0; level < levels_.size(); ++level) {
      const size_t word = from / kBits;
      const uint64_t bits = levels_[level][word] & ~uint64_t{0} >> (kBits - 1 - from % kBits);
      if (bits != 0) {
        from = word * kBits + Last(bits);
        while (level-- > 0) from = from * kBits + Last(levels_[level][from]);
        return from;
      }
      if (word == 0) return std::nullopt;
      from = word - 1;
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kBits = 64;
  static uint64_t BitOf(size_t slot) { return uint64_t{1} << slot % kBits; }
  static size_t First(uint64_t bits) { return static_cast<size_t>(std::countr_zero(bits)); }
  static size_t Last(uint64_t bits) {
    return kBits - 1 - static_cast<size_t>(std::countl_zero(bits));
  }

  std::vector<std::vector<uint64_t>> levels_;
};

// The same over a ring of 2^n slots, by numbers that only grow: members span less than a turn.
class RingSet {
 public:
  explicit RingSet(size_t slots) : mask_(slots - 1), set_(slots) {}

  void Add(uint64_t number) { set_.Add(number & mask_); }
  void Remove(uint64_t number) { set_.Remove(number & mask_); }
  bool empty() const { return set_.empty(); }

  // The least member in [from, end). REQUIRES: end - from is at most a turn.
  std::optional<uint64_t> First(uint64_t from, uint64_t end) const {
    if (from >= end) return std::nullopt;
    auto slot = set_.Next(from & mask_);
    if (!slot) slot = set_.Next(0);
    return Number(slot, from, end);
  }
  // The largest member in [from, end).
  std::optional<uint64_t> Last(uint64_t from, uint64_t end) const {
    if (from >= end) return std::nullopt;
    auto slot = set_.Previous((end - 1) & mask_);
    if (!slot) slot = set_.Previous(mask_);
    return Number(slot, from, end);
  }

 private:
  std::optional<uint64_t> Number(std::optional<size_t> slot, uint64_t from, uint64_t end) const {
    if (!slot) return std::nullopt;
    const uint64_t number = from + ((*slot - from) & mask_);
    return number < end ? std::optional(number) : std::nullopt;
  }

  uint64_t mask_;
  SlotSet set_;
};

}  // namespace ravenstore::elastic
