// Under --mode=elastic: what graphs touch, which is what their nodes name together.
//
// Nodes are read when a graph is made executable, and where its executable is changed. What cannot
// be read may touch anything.
//
// Threads: any; one executable is changed and launched by one thread at a time, as CUDA wants it.
#pragma once

#include "interceptor/touch.h"

namespace ravenstore::interceptor::graph_uses {

// Launches the executable by `call`.
CUresult Launch(CUgraphExec executable, CUstream stream, bool per_thread,
                CUresult (*call)(CUgraphExec executable, CUstream stream));

}  // namespace ravenstore::interceptor::graph_uses
