// The thread that maps and unmaps memory as the daemon's packets say.
//
// The watcher (control.h) makes no driver call. Such a call may wait for a stream (that of
// cuMemHostUnregister does), and the stream for bytes of the daemon. If the daemon is gone by then,
// only the watcher can end the wait.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "core/result.h"

namespace ravenstore::client {

// Owns: the thread, and the tasks that have not begun, with the descriptors that they own.
// Threads: Post by any; Start and Stop by the owner.
class Mapper {
 public:
  ~Mapper() { Stop(); }

  // `on_failure` runs on the thread when a task has thrown (no memory). It must not throw. Tasks
  // after that one are dropped. Errors: kSystem: the thread could not be started.
  core::Status Start(std::function<void()> on_failure);
  // Runs `task` on the thread, after those posted before. Drops it after Stop, or a failure.
  void Post(std::function<void()> task);
  // Drops tasks that have not begun, and waits for the one that has.
  void Stop();

  void LockForFork() { mutex_.lock(); }
  void UnlockAfterFork() { mutex_.unlock(); }
  // In a forked child, between the two above: closes the tasks' descriptors. The thread is not
  // there, so this object must never be destroyed.
  void DropInChild() { tasks_.clear(); }

 private:
  void Run();

  std::function<void()> on_failure_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;                    // guarded by mutex_
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
};

}  // namespace ravenstore::client
