// A 4-ary max-heap of rows that knows where each row stands, so that one can be re-keyed or taken
// out.
//
// The position is kept by the caller's rows: Traits::Key(row) gives the key, Traits::Position(row)
// a reference to where the position is stored. Cost: O(log n). Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/check.h"

namespace ravenstore::core {

inline constexpr uint32_t kNotInHeap = ~uint32_t{0};

class IndexedHeap {
 public:
  bool empty() const { return rows_.empty(); }
  size_t size() const { return rows_.size(); }
  // The row at a place in the heap's array; 0 is the largest key, and a row's key is never larger
  // than that of place (i - 1) / 4.
  uint32_t operator[](size_t place) const { return rows_[place]; }

  template <typename Traits>
  void Insert(uint32_t row, Traits traits) {
    traits.Position(row) = static_cast<uint32_t>(rows_.size());
    rows_.push_back(row);
    Up(rows_.size() - 1, traits);
  }

  template <typename Traits>
  void Erase(uint32_t row, Traits traits) {
    const size_t hole = std::exchange(traits.Position(row), kNotInHeap);
    RAVEN_CHECK(hole < rows_.size());
    RAVEN_CHECK(rows_[hole] == row);
    const uint32_t last = rows_.back();
    rows_.pop_back();
    if (last == row) return;
    Set(hole, last, traits);
    Up(hole, traits);
    Down(traits.Position(last), traits);
  }

 private:
  static constexpr size_t kArity = 4;

  template <typename Traits>
  void Set(size_t place, uint32_t row, Traits& traits) {
    rows_[place] = row;
    traits.Position(row) = static_cast<uint32_t>(place);
  }

  template <typename Traits>
  void Up(size_t place, Traits& traits) {
    const uint32_t row = rows_[place];
    while (place > 0) {
      const size_t parent = (place - 1) / kArity;
      if (traits.Key(rows_[parent]) >= traits.Key(row)) break;
      Set(place, rows_[parent], traits);
      place = parent;
    }
    Set(place, row, traits);
  }

  template <typename Traits>
  void Down(size_t place, Traits& traits) {
    const uint32_t row = rows_[place];
    for (;;) {
      const size_t first = place * kArity + 1;
      if (first >= rows_.size()) break;
      size_t largest = first;
      for (size_t i = first + 1; i < std::min(first + kArity, rows_.size()); ++i) {
        if (traits.Key(rows_[i]) > traits.Key(rows_[largest])) largest = i;
      }
      if (traits.Key(rows_[largest]) <= traits.Key(row)) break;
      Set(place, rows_[largest], traits);
      place = largest;
    }
    Set(place, row, traits);
  }

  std::vector<uint32_t> rows_;
};

}  // namespace ravenstore::core
