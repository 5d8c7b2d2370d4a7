// What leaves a GPU in a burst, over the links of its peers, simulated.
#pragma once

#include "bench/harvest_day.h"

namespace ravenstore::bench {

// 8 GiB leave for one peer, and for two that have a link of their own each, with none of the host's
// memory: the burst's time over one link over that over two. It makes room for one tensor, or for
// many in turn: the worst counts.
void MeasureBurst(const Report& report);

}  // namespace ravenstore::bench
