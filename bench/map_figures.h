// The figures of mapping device memory in clients by the map ring.
#pragma once

#include <string>

#include "bench/figure.h"

namespace ravenstore::bench {

// Starts clients of its own, and is their daemon. On the host backend figures have no targets, and
// those that need a GPU are skipped. `scale` < 1 shortens the runs.
// REQUIRES: this process has used no device, and has one thread.
void MeasureMaps(const std::string& backend, double scale, const Report& report);

}  // namespace ravenstore::bench
