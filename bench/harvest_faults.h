// Faults injected into every kind of step of harvested memory while clients use it.
#pragma once

#include <cstdint>

#include "bench/figure.h"

namespace ravenstore::bench {

// Reports harvest.faults: how many faults a daemon on simulated devices met while its clients read
// no wrong byte; 0 where they read one, or got no answer. `faults`: how many to inject. `seed`
// determines what goes wrong with the n-th step of a kind.
void MeasureHarvestFaults(uint64_t faults, uint64_t seed, const Report& report);

}  // namespace ravenstore::bench
