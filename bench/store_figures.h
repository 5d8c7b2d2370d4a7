// The figures of the store that need no GPU, on the host backend, and those that need one.
#pragma once

#include <string>

#include "bench/figure.h"

namespace ravenstore::bench {

// Each starts daemons of its own ($RAVENSTORE_DAEMON) and reports every figure of its kind. `scale`
// < 1 shortens the runs.
void MeasureStoreOnHost(double scale, const Report& report);
void MeasureStoreOnGpu(double scale, const Report& report);
// What channels between memory and a file in the folder of temporary files reach, of what plain
// calls on it do in turn with them.
void MeasureFileLink(double scale, const Report& report);

}  // namespace ravenstore::bench
