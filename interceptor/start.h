// How the interceptor begins in a process, and how a hook knows where it is.
//
// Threads: any.
#pragma once

#include <cstdint>

namespace ravenstore::interceptor {

// Begins the accounting, once in each process: after the first cuInit that succeeded. Attaches to
// the daemon (bounded), so that budgets hold before the first allocation. Cheap when done. False
// while the driver cannot be asked, and within itself. A child of fork begins again.
bool Start();
// This process is in the middle of Start(), or of a hook that calls another hooked function.
class Within {
 public:
  Within();
  ~Within();
  // True for the outermost one of the thread: only that one counts.
  bool outermost() const { return outermost_; }

 private:
  bool outermost_;
};

// How many hooks of the driver this thread has been in. A hook of the runtime compares it to see
// whether the driver's hooks saw what it did.
uint32_t DriverHooksSeen();

}  // namespace ravenstore::interceptor
