// A cluster that is simulated with everything that may go wrong: crashes, nodes that hand over and
// end, cut and broken connections, slow links, clocks that go apart, processes that stand still,
// memory that is wanted back and bytes that change in it; and the store by which nodes find each
// other stops, is restored to what it was, forgets, loses answers and is cut off. Clients write,
// read, grow and free, and know what each offset must hold.
//
// The nodes are cluster/node.h's with cluster/membership.h, in virtual time (sim/cluster_member.h):
// a run follows from its seed and nothing else. What is judged is ClusterCounts; nodes that have
// not found each other a while after all is well again, or keep memory without an owner, are late,
// too.
#pragma once

#include <cstdint>

#include "sim/cluster_ledger.h"

namespace ravenstore::sim {

struct ClusterRun {
  uint64_t seed = 0;
  uint32_t nodes_max = 8;
  uint32_t events = 2000;
};

// Runs it to its end, or to the first violation.
ClusterCounts RunCluster(const ClusterRun& run);

}  // namespace ravenstore::sim
