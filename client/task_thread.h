// A thread that executes tasks in the order in which they were posted.
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
#include <utility>

namespace ravenstore::client {

// Owns: the thread, and the tasks that have not begun, with the descriptors that they own.
// Threads: Post by any; Stop by the owner.
class TaskThread {
 public:
  ~TaskThread() { Stop(); }

  // `name`: of the thread, at most 15 characters. `on_failure` runs on it when a task has thrown
  // (no memory), or on the thread that posts where none can be started. It must not throw. Tasks
  // after a failure are dropped.
  TaskThread(const char* name, std::function<void()> on_failure)
      : name_(name), on_failure_(std::move(on_failure)) {}

  // Runs `task` on the thread, after those posted before. The first starts the thread. Drops it
  // after Stop, or a failure.
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

  const char* const name_;
  const std::function<void()> on_failure_;
  std::mutex mutex_;
  std::thread thread_;  // started under mutex_
  std::condition_variable changed_;
  bool stopping_ = false;                    // guarded by mutex_
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
};

}  // namespace ravenstore::client
