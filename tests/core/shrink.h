// Makes a failing sequence small: Zeller's delta debugging, then plainer items one by one.
//
// Owns: nothing. Deterministic as far as `fails` is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace ravenstore::core {

template <typename Item>
struct ShrinkTask {
  using Items = std::vector<Item>;
  std::function<bool(const Items&)> fails;
  // Items that may take the place of one; each has to be plainer than it, so that this ends.
  std::function<std::vector<Item>(const Item&)> simpler;
  size_t replays_max = 2000;  // calls of `fails`
};

template <typename Item>
class Shrinker {
 public:
  using Items = std::vector<Item>;

  // REQUIRES: `task.fails(items)`.
  Shrinker(ShrinkTask<Item> task, Items items) : task_(std::move(task)), items_(std::move(items)) {}

  // What still fails. Unless the replays ran out, no item of it can be taken out, nor made plainer.
  Items Run() {
    for (size_t chunk = items_.size() / 2; chunk > 1; chunk /= 2) DropSweep(chunk);
    // One taken out, or made plainer, may make others needless.
    bool changed = true;
    while (changed) {
      changed = DropSweep(1);
      changed = (!changed && SimplifyOnce()) || changed;
    }
    return items_;
  }
  size_t replays() const { return replays_; }

 private:
  bool Keeps(Items candidate) {
    if (replays_ == task_.replays_max) return false;
    ++replays_;
    if (!task_.fails(candidate)) return false;
    items_ = std::move(candidate);
    return true;
  }

  // From the end: what comes later leans on what came before. True when something went.
  bool DropSweep(size_t chunk) {
    const size_t before = items_.size();
    for (size_t end = items_.size(); end > 0; end -= std::min(end, chunk)) {
      const size_t begin = end - std::min(end, chunk);
      Items candidate(items_.begin(), items_.begin() + static_cast<ptrdiff_t>(begin));
      candidate.insert(candidate.end(), items_.begin() + static_cast<ptrdiff_t>(end), items_.end());
      Keeps(std::move(candidate));
    }
    return items_.size() < before;
  }

  bool SimplifyOnce() {
    bool changed = false;
    for (size_t i = 0; i < items_.size(); ++i) {
      while (SimplifyAt(i)) changed = true;
    }
    return changed;
  }

  bool SimplifyAt(size_t index) {
    for (const Item& one : task_.simpler(items_[index])) {
      Items candidate = items_;
      candidate[index] = one;
      if (Keeps(std::move(candidate))) return true;
    }
    return false;
  }

  ShrinkTask<Item> task_;
  Items items_;
  size_t replays_ = 0;
};

}  // namespace ravenstore::core
