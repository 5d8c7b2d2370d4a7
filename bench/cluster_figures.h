// The figures of daemons that are one cluster. Each starts daemons of its own ($RAVENSTORE_DAEMON)
// and reports every figure of its kind; `scale` < 1 shortens the runs.
#pragma once

#include "bench/figure.h"

namespace ravenstore::bench {

// Tensors out to another node and back in, compared with a plain TCP stream and Redis, in turn.
void MeasureRemote(double scale, const Report& report);
// What a cluster that is configured and idle costs: the daemon's CPU, and a client's calls.
void MeasureIdle(double scale, const Report& report);
// How long it takes to know what lay on a node that was killed.
void MeasureNodeLoss(const Report& report);

}  // namespace ravenstore::bench
