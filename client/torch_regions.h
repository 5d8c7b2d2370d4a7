// Regions (client/ravenstore.h) for torch's CPU tensors, where the store's devices are simulated.
// On CUDA torch's own memory pools ask a region for memory.
#pragma once

namespace ravenstore::torch {

// From now on CPU memory that a thread asks torch for within a region is the region's. A second
// call does nothing. Threads: any. Errors: none. It stays for the life of the process.
void ServeCpuRegions();

}  // namespace ravenstore::torch
