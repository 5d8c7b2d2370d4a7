// Closures posted from any thread to the one thread that runs them.
//
// Threads: Post from any; RunSome from the owner. Posting wakes an owner that waits on
// descriptor().
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

class Mailbox {
 public:
  Mailbox();

  void Post(std::function<void()> work);
  // Runs up to `limit` closures in the order they came; returns how many.
  size_t RunSome(size_t limit);
  bool empty() const { return !pending_.load(std::memory_order_acquire); }
  // Closures that have not begun.
  size_t size() const;
  // An eventfd, readable while something may be pending.
  int descriptor() const { return event_.get(); }

 private:
  ipc::UniqueFd event_;
  std::atomic<bool> pending_{false};
  mutable std::mutex mutex_;
  std::deque<std::function<void()>> work_;  // guarded by mutex_
};

}  // namespace ravenstore::daemon
