#include "core/plan/range_minimum.h"

#include <algorithm>
#include <bit>

namespace ravenstore::core::plan {

void RangeMinimum::Assign(const std::vector<int64_t>& values) {
  size_ = values.size();
  leaves_ = std::bit_ceil(std::max<size_t>(1, size_));
  least_.assign(2 * leaves_, kEmpty);
  added_.assign(2 * leaves_, 0);
  std::copy(values.begin(), values.end(), least_.begin() + static_cast<ptrdiff_t>(leaves_));
  for (size_t node = leaves_ - 1; node > 0; --node)
    least_[node] = std::min(least_[2 * node], least_[2 * node + 1]);
}

void RangeMinimum::Add(size_t first, size_t last, int64_t amount) {
  if (first > last || first >= size_) return;
  last = std::min(last, size_ - 1);
  size_t low = first + leaves_;
  size_t high = last + leaves_ + 1;
  for (; low < high; low /= 2, high /= 2) {
    if (low % 2 == 1) AddAt(low++, amount);
    if (high % 2 == 1) AddAt(--high, amount);
  }
  Refresh(first + leaves_);
  Refresh(last + leaves_);
}

void RangeMinimum::Refresh(size_t node) {
  for (node /= 2; node > 0; node /= 2)
    least_[node] = std::min(least_[2 * node], least_[2 * node + 1]) + added_[node];
}

int64_t RangeMinimum::Least(size_t first, size_t last) const {
  if (first > last || first >= size_) return kEmpty;
  return LeastBelow(1, 0, leaves_, first, std::min(last, size_ - 1));
}

int64_t RangeMinimum::LeastBelow(size_t node, size_t begin, size_t width, size_t first,
                                 size_t last) const {
  if (first <= begin && begin + width - 1 <= last) return least_[node];
  const size_t half = width / 2;
  int64_t least = kEmpty;
  if (first < begin + half) least = LeastBelow(2 * node, begin, half, first, last);
  if (last >= begin + half)
    least = std::min(least, LeastBelow(2 * node + 1, begin + half, half, first, last));
  return least + added_[node];
}

}  // namespace ravenstore::core::plan
