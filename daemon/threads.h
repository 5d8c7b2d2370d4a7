// Threads that end the daemon loudly when they end by themselves, and the pool that does the slow
// calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace ravenstore::daemon {

// Runs `body` on a named thread. If it throws, or returns before `expected_to_end` is set, the
// process logs why and aborts: a daemon that lost one of its threads must not go on half alive.
std::thread Supervise(std::string name, const std::atomic<bool>& expected_to_end,
                      std::function<void()> body);

// Slow work (slab creation, export, unmapping, pinning) off the planner loop.
// Threads: Run from any thread; work runs on one of `threads` workers in the order given,
// overlapping.
class WorkerPool {
 public:
  WorkerPool(std::string name, size_t threads);
  // Finishes what was given.
  ~WorkerPool();
  void Run(std::function<void()> work);

 private:
  void Work();

  std::atomic<bool> ending_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace ravenstore::daemon
