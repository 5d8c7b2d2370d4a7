// An owner of a GPU that does not know the store, with a daemon that harvests what it leaves free.
//
// The daemon's decisions are its own (core/idle_memory.h, daemon/harvest.h, with the defaults of
// its configuration): it looks ten times a second, and knows of the owner only what is free then.
// What chunks take was measured on H100s (docs/measurements.md): 5 ms to copy 256 MiB to the host,
// then 4.2 ms to unmap and release it, or to make it; the next is copied meanwhile.
//
// Assumed, each to the owner's harm unless it says otherwise:
// - All memory that may be harvested is harvested immediately. It holds the only copy of its data,
//   so giving it back copies the data.
// - The daemon's context takes 0.5 GiB.
// - The owner's use changes once a minute, at a random moment. Freed memory is free immediately.
// - What it takes it allocates piece by piece, from 20 MiB to 2 GiB, as many of each size as of its
//   double, and uses each before the next, at a rate that is given. To its good: it does not take
//   most of the GPU in one piece, as some programs do at their start.
// - A piece that is larger than the free memory is one out-of-memory error, however long it does
//   not fit. The owner goes on as soon as it fits, or with its next change.
//
// Threads: one at a time. The same input gives the same result.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace ravenstore::bench {

struct UnawareOptions {
  core::Bytes memory = core::GiB(80);  // of the GPU
  core::Bytes reserve;                 // no more than that
  double rate = 0;                     // of the owner's growth, in bytes per second
  uint64_t seed = 1;                   // of moments and sizes
};

struct UnawareOutcome {
  uint64_t pieces = 0;
  uint64_t errors = 0;   // among them
  double harvested = 0;  // bytes, in the mean over time
};

// `used`: by the owner, minute by minute, from the first on. It grows to that gradually.
UnawareOutcome SimulateUnawareOwner(const std::vector<core::Bytes>& used,
                                    const UnawareOptions& options);

}  // namespace ravenstore::bench
