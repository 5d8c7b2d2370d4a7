// The clock that the daemon and its clients share.
#pragma once

#include <time.h>

#include "core/types.h"

namespace ravenstore::ipc {

inline core::Tick ReadClock(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return core::Tick(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

// CLOCK_MONOTONIC, the same instant in every process of the node. No system call (vDSO).
inline core::Tick Now() {
  return ReadClock(CLOCK_MONOTONIC);
}
// CLOCK_BOOTTIME, which goes on while the machine sleeps. Not to be compared with the other.
inline core::Tick BootNow() {
  return ReadClock(CLOCK_BOOTTIME);
}

}  // namespace ravenstore::ipc
