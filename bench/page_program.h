// A trace of tensors (docs/TRACES.md) as the elastic engine would see it: what is allocated lies
// where the engine would lay it (elastic/arena.h), and what the plan knows are the pages there,
// which several may share.
//
// Threads: one at a time. The same trace gives the same program.
#pragma once

#include <vector>

#include "core/types.h"
#include "elastic/replay.h"
#include "sim/trace.h"

namespace ravenstore::bench {

// Without the tensors that are too small to be the engine's.
std::vector<elastic::ProgramEvent> PagesOf(const sim::Trace& trace, core::Bytes page);

}  // namespace ravenstore::bench
