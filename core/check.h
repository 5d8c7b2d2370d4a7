// RAVEN_CHECK: an invariant of ours that must hold, in every build.
//
// It is for the daemon, tools and tests. Code that runs inside a client's process must not rely on
// it for anything a client or a daemon can cause: there an operating failure is a Result.
#pragma once

namespace ravenstore::core {

// Prints the broken condition and where it stands to standard error and aborts.
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);

}  // namespace ravenstore::core

#define RAVEN_CHECK(condition)        \
  ((condition) ? static_cast<void>(0) \
               : ::ravenstore::core::CheckFailed(#condition, __FILE__, __LINE__))
