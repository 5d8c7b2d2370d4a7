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

// Returns the number of parts per GPU: $RAVENSTORE_TEST_GPU_PARTS, from 1 to 8; 1 if it is not set.
// Errors: kInvalidArgument.
Result<int> PartsForTests();

// Splits each of `devices` into `parts` devices, in order. Their UUIDs are the device's own and
// "/0", "/1", ... With one part the devices stay as they are. Owns: the devices, shared. REQUIRES:
// `parts` is at least 1.
Devices InParts(Devices devices, int parts);

}  // namespace ravenstore::device
