// The clock that the daemon and its clients share.
#pragma once

#include <time.h>

#include "core/types.h"

namespace ravenstore::ipc {

// CLOCK_MONOTONIC, the same instant in every process of the node. No system call (vDSO).
inline core::Tick Now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return core::Tick(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

}  // namespace ravenstore::ipc
