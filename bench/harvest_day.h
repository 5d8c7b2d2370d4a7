// Harvested memory on a node, simulated: a day as it is generated, and give-backs alone.
#pragma once

#include "bench/figure.h"

namespace ravenstore::bench {

// A tenant's training on one of 8 GPUs beside owners on the others. `scale` below 1 plays fewer
// hours of the day.
void MeasureHarvestDay(double scale, const Report& report);
// Owners of 8 GPUs who know nothing of the store, with several reserves: their out-of-memory errors
// a day (bench/unaware_owner.h). `scale`: as above.
void MeasureUnawareOwners(double scale, const Report& report);
// 8 GiB of one GPU are given back, clean and dirty.
void MeasureGiveBack(const Report& report);

}  // namespace ravenstore::bench
