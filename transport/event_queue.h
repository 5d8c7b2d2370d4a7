// Actions that are due at some time, for fakes and simulations in virtual time. Actions of one time
// are taken in the order in which they were added.
//
// Owns: the actions. Threads: one at a time. Units: the caller's clock. Errors: none. Cost:
// O(log actions).
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "core/types.h"

namespace ravenstore::transport {

class EventQueue {
 public:
  // kNever: the action is dropped.
  void Add(core::Tick when, std::function<void()> action) {
    if (when != core::kNever) events_.emplace(when, std::move(action));
  }
  // When the first action is due, or kNever.
  core::Tick Next() const { return events_.empty() ? core::kNever : events_.begin()->first; }
  // Removes the first action and returns it. Returns none if it is due after `until`.
  std::function<void()> Take(core::Tick until) {
    if (events_.empty() || Next() > until) return {};
    return std::move(events_.extract(events_.begin()).mapped());
  }
  void Clear() { events_.clear(); }

 private:
  std::multimap<core::Tick, std::function<void()>> events_;
};

}  // namespace ravenstore::transport
