// A rival that knows nothing of what comes: tensors come when they are asked for, and leave when
// room is needed, as under managed memory.
//
// A call that needs room evicts idle tensors until there is enough. A dirty one is copied out
// first, while the call waits. Copies of one direction are one after the other. Calls of several
// clients are made in the order of their clocks. Room is counted in bytes. It shares no code with
// the plan, so that a mistake of one does not hide the other's.
//
// Owns: nothing. Units: simulated time, bytes. Threads: one at a time; the same input gives the
// same result. Cost: O(calls x log tensors).
#pragma once

#include <cstdint>

#include "core/types.h"
#include "sim/hardware.h"
#include "sim/outcome.h"
#include "sim/trace.h"

namespace ravenstore::sim {

enum class EvictionOrder : uint8_t {
  kLru,   // the least recently used
  kGdsf,  // greedy dual size frequency: Cherkasova 1998, by the time that a copy back takes
};

struct DemandPaging {
  EvictionOrder order = EvictionOrder::kLru;
  bool copies_out = true;  // false: dirty tensors leave in no time, as if all were copied ahead
};

// Iterations' and clients' stalls, bytes and times are filled in. Errors: in the outcome: no room
// for what is in use, or more than kReplayMax.
Outcome ReplayDemandPaging(const Trace& trace, const Hardware& hardware, core::Bytes budget,
                           const DemandPaging& options);

}  // namespace ravenstore::sim
