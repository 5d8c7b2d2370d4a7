// What several clients wait for, served in turn: nobody waits behind all of another's.
//
// A turn lasts for so many bytes of its client's items, which keep their order, or until there are
// no more; then the client with the next larger id that has any is served, and after the last the
// first. Turns should be as long as others can bear to wait: of two that take turns chunk by chunk
// both get what they wait for as late as the second would anyway.
//
// Threads: one at a time. Cost: O(log clients).
#pragma once

#include <deque>
#include <map>
#include <utility>

#include "core/types.h"

namespace ravenstore::core {

inline constexpr Bytes kTurn = MiB(128);  // 2 to 5 ms of a PCIe link

template <typename Item>
class Turns {
 public:
  explicit Turns(Bytes turn = kTurn) : turn_(turn) {}

  bool empty() const { return queues_.empty(); }
  void Push(ClientId client, Item item) { queues_[client].push_back(std::move(item)); }
  void Clear() { queues_.clear(); }
  // The item whose turn it is. REQUIRES: !empty().
  Item& Front() { return Next()->second.front(); }
  // So many of its bytes were served; with `done` they were its last. REQUIRES: !empty().
  void Advance(Bytes bytes, bool done) {
    const auto next = Next();
    if (next->first != last_ || served_ >= turn_) served_ = Bytes{0};
    last_ = next->first;
    served_ += bytes;
    if (done) next->second.pop_front();
    if (next->second.empty()) queues_.erase(next);
  }

 private:
  using Queues = std::map<ClientId, std::deque<Item>>;  // no empty ones

  typename Queues::iterator Next() {
    if (served_ < turn_) {
      const auto same = queues_.find(last_);
      if (same != queues_.end()) return same;
    }
    const auto next = queues_.upper_bound(last_);
    return next == queues_.end() ? queues_.begin() : next;
  }

  const Bytes turn_;
  Queues queues_;
  ClientId last_{};  // whose turn it is, or was last
  Bytes served_;     // of its items, in this turn
};

}  // namespace ravenstore::core
