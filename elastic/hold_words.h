// Which ranges, or pages, calls may use immediately, without the scheduler's lock.
//
// Each has a word: whether it is open, and how many holds have begun whose ends the scheduler has
// not seen. What is open is resident and mapped at its address. It is closed before it leaves, and
// not while there is a hold.
//
// Owns: 4 bytes each. Threads: any, concurrently, except Grow(). Cost: O(1). Errors: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

namespace ravenstore::elastic {

class HoldWords {
 public:
  // There are words up to before this number. No other thread is in here.
  void Grow(uint32_t end) {
    while (words_.size() < end) words_.emplace_back(0);
  }

  bool IsOpen(uint32_t number) const {
    return (words_[number].load(std::memory_order_acquire) & kOpen) != 0;
  }
  void Open(uint32_t number) { words_[number].fetch_or(kOpen, std::memory_order_acq_rel); }
  // Returns false if there is a hold.
  bool Close(uint32_t number) {
    uint32_t word = words_[number].load(std::memory_order_acquire);
    while (word < kHold) {
      if (words_[number].compare_exchange_weak(word, 0, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  // A hold of what is open. Returns false if it is closed.
  bool TryHold(uint32_t number) {
    uint32_t word = words_[number].load(std::memory_order_acquire);
    while ((word & kOpen) != 0) {
      if (words_[number].compare_exchange_weak(word, word + kHold, std::memory_order_acq_rel))
        return true;
    }
    return false;
  }
  // A hold of what may have to come first.
  void Hold(uint32_t number) { words_[number].fetch_add(kHold, std::memory_order_acq_rel); }
  // The scheduler has seen the end of a hold.
  void EndHold(uint32_t number) { words_[number].fetch_sub(kHold, std::memory_order_acq_rel); }

 private:
  static constexpr uint32_t kOpen = 1;
  static constexpr uint32_t kHold = 2;

  std::deque<std::atomic<uint32_t>> words_;
};

}  // namespace ravenstore::elastic
