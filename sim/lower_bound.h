// What no policy can beat: the least stall that a trace costs on a machine under a budget.
//
// The window bound: over steps i..j whatever is read and existed before i, beyond what the device
// can have held at i, came over the link in that window or stalled it; and whatever is created and
// read later than j, beyond what the device holds at j, left it. What the step before i, or step j,
// has in use in addition takes room as well. Windows that are disjoint add up; dynamic programming
// finds the best set. Windows of up to 1500 steps are all looked at; of the longer ones
// those that begin at a multiple of a 64th of their length.
//
// It is a bound, not the optimum: fragmentation, latencies and the coupling of the two directions
// cost more. For several clients each one's own bound, with the whole budget, is added up.
//
// With several pools the device and those nearest to it are looked at as one place, which holds as
// much as all of them: whatever leaves or enters it goes over the links that lead out of it. Each
// number of nearest pools gives such a bound, and the greatest counts.
#pragma once

#include "core/types.h"
#include "sim/hardware.h"
#include "sim/setup.h"
#include "sim/trace.h"

namespace ravenstore::sim {

struct LowerBound {
  core::Duration stall{0};
  core::Duration compute{0};
};

// Of the iterations from `from` on (0: all, with nothing on the device at first).
LowerBound LeastStall(const Trace& trace, const Hardware& hardware, core::Bytes budget,
                      size_t from = 0);
// The same with the pools of `setup`.
LowerBound LeastStall(const Trace& trace, const ReplaySetup& setup);

}  // namespace ravenstore::sim
