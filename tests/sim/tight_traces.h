// Programs that take nearly all of a small budget at one time: neither of the tuning set nor of the
// validation set, each drawn by a seed. Their kernels have many inputs of unlike sizes, which
// is what leaves a budget in pieces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/hardware.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// "language", "diffusion", "tables", "prefixes", "graph"; and two together, "language+tables" ...
const std::vector<std::string>& TightNames();
// REQUIRES: `name` is one of TightNames().
Trace TightTrace(const std::string& name, const Hardware& hardware, uint64_t seed);

}  // namespace ravenstore::sim
