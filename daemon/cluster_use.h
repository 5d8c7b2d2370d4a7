// The cluster as the daemon shows it. Pure.
#pragma once

#include "core/types.h"
#include "daemon/cluster.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

// `with_nodes`: the other nodes, too, each of them once.
void FillCluster(const Cluster::View& view, core::Bytes piece, bool with_nodes,
                 proto::ClusterUse* to);

// What other nodes have of `bytes` at `offset` of the remote pool. Without `with_nodes` they have
// no names.
void FillRemote(const Cluster::View& view, core::Bytes piece, core::Bytes offset, core::Bytes bytes,
                bool with_nodes, proto::RemoteReplica* to);

}  // namespace ravenstore::daemon
