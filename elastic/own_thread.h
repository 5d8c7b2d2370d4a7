// Threads of ours in a process that is not: none of the job's signals is theirs, they have the
// engine's context current, and none of their calls of the driver breaks a capture of the job's.
#pragma once

#include <cuda.h>

#include <functional>
#include <thread>

#include "elastic/driver.h"

namespace ravenstore::elastic {

// `name`: up to 15 characters. `driver` and `context` outlive the thread. Who starts it joins it;
// after a fork the child has none.
std::thread OwnThread(const char* name, const Driver* driver, CUcontext context,
                      std::function<void()> run);

}  // namespace ravenstore::elastic
