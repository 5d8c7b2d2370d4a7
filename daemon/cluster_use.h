// The cluster as the daemon shows it. Pure.
#pragma once

#include "daemon/cluster.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

// `with_nodes`: the other nodes, too, each of them once.
void FillCluster(const Cluster::View& view, core::Bytes piece, bool with_nodes,
                 proto::ClusterUse* to);

}  // namespace ravenstore::daemon
