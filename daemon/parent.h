// A daemon that belongs to the process that started it (Python's embedded one) ends with it,
// however that ends. PR_SET_PDEATHSIG would end it with the thread that started it.
#pragma once

#include <sys/types.h>

#include "core/result.h"

namespace ravenstore::daemon {

// From now on this process gets SIGTERM when `parent` has ended.
// Owns: a thread, which lasts as long as the process.
// Errors: kUnavailable when `parent` is not, or is no more, this process's parent; kUnsupported
// when the kernel (before 5.3) has no pidfd_open.
core::Status EndWithParent(pid_t parent);

}  // namespace ravenstore::daemon
