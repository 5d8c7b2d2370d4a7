// Harvested memory on this machine's devices: give-backs, and what an owner waits that comes back.
#pragma once

#include <string>

#include "bench/figure.h"

namespace ravenstore::bench {

// Starts daemons of its own ($RAVENSTORE_DAEMON). `backend`: "cuda", of which two GPUs are needed
// that reach one another, or "host", whose figures say only that it works.
void MeasureHarvestNode(const std::string& backend, const Report& report);

}  // namespace ravenstore::bench
