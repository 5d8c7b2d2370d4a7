// What the job is shown of its devices: no more than it may use.
//
// Threads: any.
#pragma once

#include <cstdint>

namespace ravenstore::interceptor {

// Bounds what the driver said about a device to what the job is shown; null: it is not asked. Does
// it no harm twice.
void Show(int row, uint64_t* total, uint64_t* free);

}  // namespace ravenstore::interceptor
