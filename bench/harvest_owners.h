// Owners of GPUs without the interceptor, simulated over a generated day.
#pragma once

#include "bench/figure.h"

namespace ravenstore::bench {

// Owners of 8 GPUs, with several reserves: their out-of-memory errors a day
// (bench/unaware_owner.h). `scale` below 1 plays fewer hours of the day.
void MeasureUnawareOwners(double scale, const Report& report);

}  // namespace ravenstore::bench
