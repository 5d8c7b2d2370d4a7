// Waiting without sleeping, where that helps.
#pragma once

#include <atomic>
#include <chrono>

#include "core/types.h"

namespace ravenstore::ipc {

// The cores that the calling thread may run on.
int UsableCores();

// Of one side of a conversation between two processes.
//
// On a machine of few cores both sides may be on the same one, and stay there though another is
// idle: a scheduler migrates no thread for some microseconds. A thread that spins may then occupy
// the core that the other side needs, so it yields at every check. If a yield takes longer than the
// other side ever needs, a third thread is running, which would get a whole time slice at every
// check: for a while it is better to sleep, because a woken thread runs first.
//
// Threads: any.
class Spinner {
 public:
  explicit Spinner(int cores = UsableCores());

  // Between two looks. False: sleep rather than go on spinning.
  bool Pause();

 private:
  const bool few_cores_;
  std::atomic<core::Duration::rep> crowded_until_{0};
};

}  // namespace ravenstore::ipc
