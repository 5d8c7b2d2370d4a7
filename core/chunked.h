// A sequence that grows at its end and never moves its elements. A million elements in one array
// would take milliseconds to grow, in a single step.
//
// Threads: one at a time. Cost: O(1).
#pragma once

#include <bit>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace ravenstore::core {

template <typename T, size_t kPerChunk>
class Chunked {
  static_assert(std::has_single_bit(kPerChunk), "finding an element is a shift and a mask");

 public:
  T& operator[](size_t i) { return chunks_[i / kPerChunk][i % kPerChunk]; }
  const T& operator[](size_t i) const { return chunks_[i / kPerChunk][i % kPerChunk]; }
  T& back() { return (*this)[size_ - 1]; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void push_back(T element) {
    if (size_ % kPerChunk == 0) chunks_.push_back(std::make_unique<T[]>(kPerChunk));
    (*this)[size_++] = std::move(element);
  }
  // It has at least that many elements from now on; new ones are as if made by T().
  void GrowTo(size_t size) {
    while (size_ < size) push_back(T());
  }
  void pop_back() {
    if (--size_ % kPerChunk == 0) chunks_.pop_back();
  }

 private:
  std::vector<std::unique_ptr<T[]>> chunks_;
  size_t size_ = 0;
};

}  // namespace ravenstore::core
