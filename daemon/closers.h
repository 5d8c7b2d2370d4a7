// Closes descriptors that users sent, and sockets that may still hold some, away from the threads
// that serve all users. The sender can make a close take any time: by a TCP socket that lingers, a
// file of a hundred gigabytes, a file system of its own.
//
// A user's closes are done one after the other, so that one user busies at most one thread.
// One thread is always there; more begin when they are needed, at most kThreadsMax, and end when
// there is nothing to close.
// A close that lingers is interrupted immediately; what was to be sent is sent all the same. A
// close that hangs in spite of that keeps its thread, and its user is stuck until it returns.
//
// Threads: any. What hangs at the end is left behind with its thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "core/types.h"
#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

class Closers {
 public:
  static constexpr size_t kThreadsMax = 64;
  static constexpr core::Duration kStuckAfter = std::chrono::seconds(1);

  // `interrupts`: false lets a close linger, for tests of one that hangs.
  explicit Closers(bool interrupts = true);
  // What is not closed yet is closed later, without `closed`.
  ~Closers();
  Closers(const Closers&) = delete;
  Closers& operator=(const Closers&) = delete;

  // Closes `descriptors` and then runs `closed` on a thread of its own; it must not call back.
  void Close(uid_t user, std::vector<ipc::UniqueFd> descriptors, std::function<void()> closed);
  // A close of the user's has hung for kStuckAfter.
  bool IsStuck(uid_t user) const;
  // All threads that may exist have hung for kStuckAfter: no user's close would begin.
  bool AllStuck() const;
  // For tests and figures.
  size_t threads() const;

 private:
  struct State;
  // Begins a thread, unless there are kThreadsMax or the system gives none: then those that are
  // there do the work, or a later call begins one. REQUIRES: the state's mutex is held.
  static void BeginThread(const std::shared_ptr<State>& state);
  static void Work(const std::shared_ptr<State>& state, bool stays);

  std::shared_ptr<State> state_;
};

}  // namespace ravenstore::daemon
