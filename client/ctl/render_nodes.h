// The cluster, as ravenctl shows it.
#pragma once

#include <cstddef>
#include <string>

#include "client/ctl/render.h"
#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

// This node, and below it a line for each other.
std::string NodesText(const proto::Stats& stats, size_t columns = kColumns);
std::string NodesJson(const proto::Stats& stats);
// The first of these lines alone; empty where there is no cluster.
std::string ClusterLine(const proto::Stats& stats);

}  // namespace ravenstore::client::ctl
