// A large cluster through part of a day: what its nodes' idle memory is worth to one another, and
// what that costs.
//
// Each node has `memory`. Owners' jobs come and go, take some of it and fill it step by step; what
// they leave idle is lent, by the daemon's rules (cluster/lend_limit.h, looked at each second), and
// recalled when they want it. Other jobs have tensors in the store; what finds no place on the
// node's device and in its host pool goes to other nodes, by the daemon's planner
// (sim/cluster_jobs.h). Both kinds come more often by day than by night, on all nodes at the same
// hours. Nodes find each other in the store of names, and all that they send to one another goes
// through a port with this rate each way, in bytes a second.
//
// A run follows from its seed and nothing else. What is counted begins after `warm_up`.
//
// Scale: a byte in lent memory stands for kClusterScale bytes. Messages are not scaled: each weighs
// on its ports as if it were that much longer.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "sim/cluster_jobs.h"
#include "sim/cluster_ledger.h"

namespace ravenstore::sim {

inline constexpr uint64_t kClusterScale = 4096;

struct ClusterLoad {
  uint64_t seed = 1;
  uint32_t nodes = 100;
  core::Duration time{std::chrono::hours(1)};
  core::Duration warm_up{std::chrono::minutes(1)};
  core::Duration day{std::chrono::hours(1)};  // hours are short here

  core::Bytes memory = core::GiB(32);  // of a node, an eighth of which stays free
  core::Bytes lend = core::GiB(24);    // at most
  core::Bytes device = core::GiB(2);
  core::Bytes host = core::GiB(2);     // of the memory, for good
  core::Bytes remote = core::GiB(24);  // at most
  double port = 1.25e9;                // bytes a second

  // Of each node, on average over the day: how many jobs run, and for how long. Sizes are spread
  // evenly over their logarithm.
  double owners = 3;
  core::Duration owner_runs{std::chrono::minutes(5)};
  core::Bytes owner_least = core::MiB(256);
  core::Bytes owner_most = core::GiB(16);
  double fills = 512e6;  // bytes a second
  double jobs = 2;
  core::Duration job_runs{std::chrono::minutes(8)};
  core::Bytes job_least = core::MiB(16);
  core::Bytes job_most = core::GiB(24);
  core::Bytes tensor_least = core::MiB(1);
  core::Bytes tensor_most = core::MiB(256);
  // How much more than on average comes at noon, and how much less at midnight. A run begins in
  // the morning, half way between.
  double daily = 0.5;
};

struct ClusterUse {
  // Remote bytes, summed over nodes and over the seconds that were looked at, and divided by the
  // number of these: what homes wanted beyond device and host pool (of all that their jobs have, or
  // are still to create); what of it lay valid in other nodes' memory; what could be lent, lent or
  // not; and the smaller of wanted and lendable, each summed over nodes.
  double wanted = 0;
  double useful = 0;
  double lendable = 0;
  double possible = 0;
  double UsefulOccupancy() const { return possible > 0 ? useful / possible : 0; }

  uint64_t recalled = 0;  // pieces that lenders wanted back
  uint64_t missed = 0;    // of those, not given back by their deadline
  double MissedPercent() const {
    return recalled == 0 ? 0 : 100.0 * static_cast<double>(missed) / static_cast<double>(recalled);
  }

  // Sent by each node in a second: calls, answers and pings between nodes, but for reads and
  // writes; and requests to the store of names, with their answers.
  double messages = 0;

  // What homes and lenders have in memory to know by where remote tensors' bytes are (records), and
  // whether these are right (checksums), for each tensor that has a copy there; and that tensor's
  // size on average.
  double record_bytes = 0;
  double checksum_bytes = 0;
  double tensor_bytes = 0;

  ClusterJobs::Counts jobs;  // the warm-up as well, as in what follows
  uint64_t moved = 0;        // pieces, to other lenders
  uint64_t events = 0;       // that were simulated
  ClusterCounts violations;
};

ClusterUse SimulateLoad(const ClusterLoad& load);

}  // namespace ravenstore::sim
