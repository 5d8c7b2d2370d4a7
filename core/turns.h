// What several clients wait for, served in turn: nobody waits behind all of another's.
//
// Each client's items keep their order; after each turn the client with the next larger id that has
// any is served, and after the last the first. Threads: one at a time. Cost: O(log clients).
#pragma once

#include <deque>
#include <map>
#include <utility>

#include "core/types.h"

namespace ravenstore::core {

template <typename Item>
class Turns {
 public:
  bool empty() const { return queues_.empty(); }
  void Push(ClientId client, Item item) { queues_[client].push_back(std::move(item)); }
  void Clear() { queues_.clear(); }
  // The item whose turn it is. REQUIRES: !empty().
  Item& Front() { return Next()->second.front(); }
  // It had its turn; with `done` it was its last. REQUIRES: !empty().
  void Advance(bool done) {
    const auto next = Next();
    last_ = next->first;
    if (done) next->second.pop_front();
    if (next->second.empty()) queues_.erase(next);
  }

 private:
  using Queues = std::map<ClientId, std::deque<Item>>;  // no empty ones

  typename Queues::iterator Next() {
    const auto next = queues_.upper_bound(last_);
    return next == queues_.end() ? queues_.begin() : next;
  }

  Queues queues_;
  ClientId last_{};  // who had the last turn
};

}  // namespace ravenstore::core
