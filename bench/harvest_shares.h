// How a device's memory is shared by tenants that all want more of it than there is: the planner
// alone, with a driver in place of daemon and clients (tests/core/world.h).
#pragma once

#include <cstdint>

#include "bench/harvest_day.h"

namespace ravenstore::bench {

// Clients of eight tenants come and go; `scale` below 1 plays fewer events, most of them before all
// are served for the first time.
void MeasureShares(double scale, uint32_t seed, const Report& report);

}  // namespace ravenstore::bench
