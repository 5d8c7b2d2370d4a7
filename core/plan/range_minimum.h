// Values by position: add to all in a range, and ask for the least in a range.
//
// Source: a segment tree with additions kept at the nodes (Bentley, 1977).
//
// Owns: the values. Cost: O(n) to assign, O(log n) a call. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace ravenstore::core::plan {

class RangeMinimum {
 public:
  static constexpr int64_t kEmpty = std::numeric_limits<int64_t>::max() / 2;

  void Assign(const std::vector<int64_t>& values);
  // Adds to the values of [first, last]. Indices past the last value are ignored.
  void Add(size_t first, size_t last, int64_t amount);
  // The least value of [first, last]; kEmpty: the range has no value.
  int64_t Least(size_t first, size_t last) const;

  size_t size() const { return size_; }

 private:
  int64_t LeastBelow(size_t node, size_t begin, size_t width, size_t first, size_t last) const;
  void Refresh(size_t node);
  void AddAt(size_t node, int64_t amount) {
    least_[node] += amount;
    added_[node] += amount;
  }

  size_t size_ = 0;
  size_t leaves_ = 0;           // a power of two
  std::vector<int64_t> least_;  // by node, of all below it; what is added above is not in it
  std::vector<int64_t> added_;  // to all below the node
};

}  // namespace ravenstore::core::plan
