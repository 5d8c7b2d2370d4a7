// A queue of items that clients wait for, served in turn: user by user, and for each user client by
// client. No user waits behind all items of another user, however many clients that one has.
//
// A turn lasts for a number of bytes of its user's items, or until there are no more. Then the user
// with the next larger id that has any is served, and after the last the first. Within the turns of
// a user its clients take turns the same way; a client's items keep their order. Turns should be as
// long as others can bear to wait: of two that take turns chunk by chunk both get what they wait
// for as late as the second would anyway.
//
// Threads: one at a time. Cost: O(log users + log clients); Erase: O(items of the client).
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "core/tuned.h"
#include "core/types.h"

namespace ravenstore::core {

// Whose item it is.
struct TurnOwner {
  TenantId tenant{};
  ClientId client{};
};

// Queues by key, of which each is served for a turn's bytes: for RoundRobinQueue.
template <typename Key, typename Queue>
class QueuesInTurn {
 public:
  bool empty() const { return queues_.empty(); }
  // REQUIRES for the next three: !empty(). Of the first two, that `queue` gets or has an item.
  Queue& Of(Key key) { return queues_[key]; }
  Queue& Next(Bytes turn) { return Find(turn)->second; }
  // Counts what the next one was served, before its item is taken out.
  void Advance(Bytes bytes, Bytes turn) {
    const auto next = Find(turn);
    if (next->first != last_ || served_ >= turn) served_ = Bytes{0};
    last_ = next->first;
    served_ += bytes;
  }
  void EraseIfEmpty(Key key) {
    const auto found = queues_.find(key);
    if (found != queues_.end() && found->second.empty()) queues_.erase(found);
  }
  Key last() const { return last_; }
  void Clear() { queues_.clear(); }

 private:
  using Queues = std::map<Key, Queue>;  // no empty ones

  typename Queues::iterator Find(Bytes turn) {
    if (served_ < turn) {
      const auto same = queues_.find(last_);
      if (same != queues_.end()) return same;
    }
    const auto next = queues_.upper_bound(last_);
    return next == queues_.end() ? queues_.begin() : next;
  }

  Queues queues_;
  Key last_{};    // whose turn it is, or was last
  Bytes served_;  // of its items, in this turn
};

template <typename Item>
class RoundRobinQueue {
 public:
  explicit RoundRobinQueue(Bytes turn = kTurn) : turn_(turn) {}

  bool empty() const { return users_.empty(); }
  void Push(TurnOwner owner, Item item) {
    users_.Of(owner.tenant).Of(owner.client).push_back(std::move(item));
  }
  void Clear() { users_.Clear(); }
  // The item whose turn it is. REQUIRES: !empty().
  Item& Front() { return users_.Next(turn_).Next(turn_).front(); }
  // `bytes` of that item were served; with `done` they were its last. REQUIRES: !empty().
  void Advance(Bytes bytes, bool done) {
    Clients& clients = users_.Next(turn_);
    std::deque<Item>& items = clients.Next(turn_);
    users_.Advance(bytes, turn_);
    clients.Advance(bytes, turn_);
    if (done) items.pop_front();
    clients.EraseIfEmpty(clients.last());
    users_.EraseIfEmpty(users_.last());
  }
  // Takes the item out; false when the owner has no such item.
  bool Erase(TurnOwner owner, const Item& item) {
    Clients& clients = users_.Of(owner.tenant);
    std::deque<Item>& items = clients.Of(owner.client);
    const auto found = std::find(items.begin(), items.end(), item);
    const bool any = found != items.end();
    if (any) items.erase(found);
    clients.EraseIfEmpty(owner.client);
    users_.EraseIfEmpty(owner.tenant);
    return any;
  }

 private:
  using Clients = QueuesInTurn<ClientId, std::deque<Item>>;

  const Bytes turn_;
  QueuesInTurn<TenantId, Clients> users_;
};

}  // namespace ravenstore::core
