// When each of several things is to be looked at again.
//
// Knows no clock: who drives it asks what is due. Threads: one at a time. Cost: O(log n), and O(1)
// for Next and Due.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/types.h"

namespace ravenstore::core {

template <typename Key>
class Timers {
 public:
  // Instead of when it was armed for, if it was.
  void Arm(const Key& key, Tick when) {
    const auto [timer, is_new] = when_.try_emplace(key, when);
    if (!is_new) in_order_.erase({std::exchange(timer->second, when), key});
    in_order_.emplace(when, key);
  }
  // The same, unless it is due by then anyway.
  void ArmBy(const Key& key, Tick when) {
    const auto armed = when_.find(key);
    if (armed == when_.end() || when < armed->second) Arm(key, when);
  }
  // Nothing if it is not armed.
  void Disarm(const Key& key) {
    const auto armed = when_.find(key);
    if (armed == when_.end()) return;
    in_order_.erase({armed->second, key});
    when_.erase(armed);
  }

  // The earliest, of several the one with the smallest key, if it is due. It stays armed.
  std::optional<Key> Due(Tick now) const {
    if (Next() > now || in_order_.empty()) return std::nullopt;
    return in_order_.begin()->second;
  }
  // The earliest instant that one is armed for; kNever: none is.
  Tick Next() const { return in_order_.empty() ? kNever : in_order_.begin()->first; }
  size_t size() const { return when_.size(); }

 private:
  std::map<Key, Tick> when_;
  std::set<std::pair<Tick, Key>> in_order_;
};

}  // namespace ravenstore::core
