// The scheduler's lock and, inside it, the lock of calls, as one.
//
// Threads: any. A thread that holds both may release the lock of calls for a while.
#pragma once

#include <mutex>

namespace ravenstore::elastic {

class BothLocks {
 public:
  void lock() {
    scheduler_.lock();
    calls_.lock();
  }
  void unlock() {
    calls_.unlock();
    scheduler_.unlock();
  }
  std::mutex& calls() { return calls_; }

  // Releases the lock of calls. REQUIRES: this thread holds both.
  class WithoutCalls {
   public:
    explicit WithoutCalls(BothLocks* locks) : locks_(locks) { locks_->calls_.unlock(); }
    ~WithoutCalls() { locks_->calls_.lock(); }
    WithoutCalls(const WithoutCalls&) = delete;
    WithoutCalls& operator=(const WithoutCalls&) = delete;

   private:
    BothLocks* const locks_;
  };

 private:
  std::mutex scheduler_;
  std::mutex calls_;
};

}  // namespace ravenstore::elastic
