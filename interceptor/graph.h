// Memory nodes of graphs: the driver takes their memory from a pool of its own on each device, when
// a graph is launched. It is asked how much that is, once a process has such nodes.
#pragma once

#include "interceptor/cuda_api.h"

namespace ravenstore::interceptor::graph {

bool Capturing(CUstream stream, bool per_thread);
// From now on launches are followed by a look at the pools.
void HasMemory();
// Brings the sums up to date.
void RefreshUsage();

}  // namespace ravenstore::interceptor::graph
