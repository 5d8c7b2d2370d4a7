// A private daemon (Python's embedded one) ends with the process that it belongs to, however that
// ends: the one that started it, or an ancestor of that, such as the launcher of a job's ranks.
// PR_SET_PDEATHSIG would end it with the thread that started it.
#pragma once

#include <sys/types.h>

#include "core/result.h"

namespace ravenstore::daemon {

// From now on this process gets SIGTERM when `ancestor` has ended.
// Owns: a thread, which lasts as long as the process.
// Errors: kUnavailable when `ancestor` is not, or is no more, an ancestor of this process;
// kUnsupported when the kernel (before 5.3) has no pidfd_open.
core::Status EndWithAncestor(pid_t ancestor);

}  // namespace ravenstore::daemon
