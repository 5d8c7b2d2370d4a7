// A GPU shown as several, for tests of what needs two of them on a machine with one.
//
// Each part has an equal share of the memory and room for no more. What its ranges created is its
// own; of what else is used of the GPU, be it by other processes, each part has an equal share.
// Parts reach one another, by copies within the GPU: they show that something works, not how fast
// it is. All else is the GPU's: its NUMA node, its processes, its streams, whether it computes.
//
// Threads, errors: as device.h says.
#pragma once

#include "core/result.h"
#include "device/device.h"

namespace ravenstore::device {

// So many parts a GPU has: $RAVENSTORE_TEST_GPU_PARTS, from 1 to 8; 1 where it is not set.
// Errors: kInvalidArgument.
Result<int> PartsForTests();

// Those of `devices` in order, each as so many, whose UUIDs are its own and "/0", "/1", ... 1: they
// stay as they are. Owns: the devices, shared. REQUIRES: `parts` is at least 1.
Devices InParts(Devices devices, int parts);

}  // namespace ravenstore::device
