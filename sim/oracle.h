// A rival that knows the whole trace: greedy, after Belady and Cao et al.
//
// The link's downward channel copies out what is needed last and has no copy on the host; what is
// clean and needed last gives way; the upward channel brings what is needed next, as long as
// nothing that is needed sooner gives way for it and what will be created before has its room.
// Room is counted in bytes: nothing is lost to fragmentation. It shares no code with the planner,
// so that a mistake of one does not hide the other's.
#pragma once

#include "core/types.h"
#include "sim/hardware.h"
#include "sim/outcome.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// It brings what its client needs within this much compute time, and nothing later: greed that
// looks too far fills the link with what can wait.
//
// Iterations' and clients' stalls, bytes and times are filled in; stats are not, nor what
// ReplaySetup::timeline keeps.
Outcome SimulateOracle(const Trace& trace, const Hardware& hardware, core::Bytes budget,
                       core::Duration lookahead = core::Duration::max());

}  // namespace ravenstore::sim
