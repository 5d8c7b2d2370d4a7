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
// idle: a scheduler moves nobody for the sake of some microseconds. Who spins then stands in the
// way of the one he waits for, so he offers the core at every look. If it is away for longer than
// the other side ever needs, a third wants it, who would get a whole time slice at every look: for
// a while it is better to sleep, because who is woken goes first.
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
