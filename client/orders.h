// Orders of other processes to one client of this process: to sleep, and to wake
// (daemon/job_orders.h).
//
// They wait here until the program has come to a point that it chose. The thread that takes
// one executes it, and reports how that ended. An order that undoes another is nothing but an order
// if that one was executed. Else the one undone is dropped, or was without effect, and there is
// nothing to do.
//
// Owns: the orders that are not executed. Threads: any; one at a time takes and finishes. Fork: a
// child calls only what is static.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "client/ravenstore.h"
#include "client/wire.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::client {

class Orders {
 public:
  // Called without a lock.
  using Answer = std::function<void(const wire::OrderDone&)>;

  explicit Orders(Answer answer) : answer_(std::move(answer)) {}
  ~Orders() { Drop(); }
  Orders(const Orders&) = delete;
  Orders& operator=(const Orders&) = delete;

  void Offer(const wire::SleepOrder& order);
  // The next to be executed, if there is one. Its deadline may be over.
  std::optional<wire::SleepOrder> Take();
  // `changed`: the client was awake and sleeps, or the other way around. Else the order found
  // nothing to do, or failed: with that status.
  void Finish(const core::Status& status, bool changed, core::Bytes freed);
  // Discards the waiting orders without an answer: the connection has ended.
  void Drop();

  // Whether an order waits for any client of this process. A relaxed load.
  static bool AnyWaits() { return waiting_in_all.load(std::memory_order_relaxed) != 0; }
  // Returns whether one does by then. core::kNever: no bound.
  static bool AwaitAny(core::Tick deadline);

 private:
  void Count(int64_t change);

  static std::atomic<uint64_t> waiting_in_all;

  const Answer answer_;
  std::mutex mutex_;
  std::deque<wire::SleepOrder> waiting_;  // guarded by mutex_, as all below
  uint64_t executing_ = 0;                // its number; 0: none
  uint64_t changed_by_ = 0;               // the last order that did
};

// Those to the store's client. Throws Error: LOST, FORKED.
Orders& OrdersOf(ravenstore_store_t* store);
// The client takes orders from now on, or with these names. Throws Error: also INVALID_ARGUMENT.
void TakeOrders(ravenstore_store_t* store, wire::TakeOrders as);

}  // namespace ravenstore::client
