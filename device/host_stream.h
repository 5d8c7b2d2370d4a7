// The host backend's streams: a thread that does in order what it is given.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "core/result.h"
#include "device/device.h"

namespace ravenstore::device {

// A queue of work and the thread that does it. The constructor starts the thread, so that no later
// Run can fail at the limit of threads. A StreamHandle of the host backend points to one of these.
// Owns: the thread. Destroying it waits for the queue, so a stream that is held in a Wait may be
//   destroyed only once something else will store the awaited value.
// Threads: any.
class HostStream {
 public:
  // Throws std::system_error when the system gives no thread.
  HostStream();
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // Enqueues `work` and returns immediately. `work` must not throw nor wait for this stream.
  void Run(std::function<void()> work);
  // Waits for everything enqueued before.
  void Synchronize();

  // What Stream::Capturing() reports: the host backend has no graphs, only their rule.
  void set_capturing(bool capturing) { capturing_.store(capturing, std::memory_order_relaxed); }
  bool capturing() const { return capturing_.load(std::memory_order_relaxed); }

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable arrived_;          // the worker sleeps on it
  std::condition_variable finished_;         // Synchronize sleeps on it
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  uint64_t enqueued_ = 0;                    // guarded by mutex_
  uint64_t done_ = 0;                        // guarded by mutex_
  bool idle_ = false;                        // the worker sleeps; guarded by mutex_
  bool closing_ = false;                     // guarded by mutex_
  std::thread worker_;
  std::atomic<bool> capturing_{false};
};

// The Stream over `handle`, a HostStream*, over the calling thread when that is null, or over
// AllStreams().
std::unique_ptr<Stream> WrapHostStream(StreamHandle handle);

}  // namespace ravenstore::device
