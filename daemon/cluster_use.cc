#include "daemon/cluster_use.h"

#include <map>
#include <string>

namespace ravenstore::daemon {

void FillCluster(const Cluster::View& view, core::Bytes piece, bool with_nodes,
                 proto::ClusterUse* to) {
  to->set_node(view.node);
  to->set_address(view.address);
  to->set_size(view.size.count());
  to->set_held(view.held.count());
  to->set_lendable(view.lendable.count());
  to->set_lent(view.lent.count());
  to->set_discovery(view.discovery);
  to->set_bytes_per_second(static_cast<uint64_t>(view.bytes_per_second));
  if (!with_nodes) return;
  std::map<std::string, proto::NodeUse> nodes;
  for (const auto& [name, address] : view.peers) nodes[name].set_address(address);
  for (const cluster::Loan::View& loan : view.lenders) {
    proto::NodeUse& node = nodes[loan.lender];
    node.set_connected(loan.connected);
    node.set_borrowed((piece * loan.slots).count());
    node.set_offered((piece * loan.offered).count());
    node.set_lease_left_ns(loan.lease_left.count());
    node.set_written(loan.written.count());
    node.set_read(loan.read.count());
  }
  for (const cluster::Lender::HomeView& home : view.homes) {
    proto::NodeUse& node = nodes[home.home];
    node.set_lent((piece * home.slots).count());
    node.set_recalled((piece * home.recalled).count());
    node.set_lent_lease_left_ns(home.lease_left.count());
    node.set_written_here(home.written.count());
    node.set_read_here(home.read.count());
  }
  for (auto& [name, node] : nodes) {
    node.set_name(name);
    to->add_nodes()->Swap(&node);
  }
}

}  // namespace ravenstore::daemon
