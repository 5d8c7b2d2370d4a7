#include "daemon/cluster_use.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/saturating.h"

namespace ravenstore::daemon {
namespace {

const cluster::Home::PieceView* FindPiece(const Cluster::View& view, cluster::PieceId id) {
  if (view.pieces == nullptr) return nullptr;
  const auto found =
      std::ranges::lower_bound(*view.pieces, id, {}, &cluster::Home::PieceView::piece);
  return found != view.pieces->end() && found->piece == id ? &*found : nullptr;
}

}  // namespace

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
  to->set_pieces_lost(view.lost);
  to->set_pieces_recalled(view.recalled);
  to->set_pieces_taken(view.taken);
  to->set_loans_lost(view.loans_lost);
  to->set_discovery_fails(view.discovery_fails);
  to->set_nodes_known(static_cast<uint32_t>(view.peers.size()));
  to->set_nodes_connected(static_cast<uint32_t>(
      std::ranges::count(view.lenders, true, &cluster::Loan::View::connected)));
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
  std::set<std::string_view> lent_to;
  for (const cluster::Lender::HomeView& home : view.homes) {
    proto::NodeUse& node = nodes[home.home];
    // A node that lost its key has a loan for each start until the earlier lease expires.
    node.set_lent(node.lent() + (piece * home.slots).count());
    node.set_recalled(node.recalled() + (piece * home.recalled).count());
    // Below zero: expired for so long.
    const int64_t left = home.lease_left.count();
    const bool is_first = lent_to.insert(home.home).second;
    node.set_lent_lease_left_ns(is_first ? left : std::max(node.lent_lease_left_ns(), left));
    // Counted by what the home asks for, which may be any number.
    node.set_written_here(core::SaturatingSum(node.written_here(), home.written.count()));
    node.set_read_here(core::SaturatingSum(node.read_here(), home.read.count()));
  }
  for (auto& [name, node] : nodes) {
    node.set_name(name);
    to->add_nodes()->Swap(&node);
  }
}

void FillRemote(const Cluster::View& view, core::Bytes piece, core::Bytes offset, core::Bytes bytes,
                bool with_nodes, proto::RemoteReplica* to) {
  std::map<std::string, proto::RemotePart> parts;
  std::optional<uint32_t> copies;
  const core::Bytes end = offset + bytes;
  for (core::Bytes at = offset; at < end;) {
    const core::Bytes next = std::min(end, at.RoundDown(piece) + piece);
    const cluster::PieceId id{static_cast<uint32_t>(at.count() / piece.count())};
    const cluster::Home::PieceView* const held = FindPiece(view, id);
    const auto there = static_cast<uint32_t>(held == nullptr ? 0 : held->copies.size());
    copies = std::min(copies.value_or(there), there);
    for (uint32_t i = 0; i < there; ++i) {
      const std::string& node = held->copies[i].first;
      parts[node].set_bytes(parts[node].bytes() + (next - at).count());
    }
    if (held != nullptr) {
      to->set_moving(to->moving() || held->in_repair);
      to->set_recalled(to->recalled() || held->leaving);
    }
    at = next;
  }
  to->set_copies(copies.value_or(0));
  for (const cluster::Loan::View& loan : view.lenders) {
    const auto part = parts.find(loan.lender);
    if (part != parts.end()) part->second.set_lease_left_ns(loan.lease_left.count());
  }
  for (auto& [node, part] : parts) {
    if (with_nodes) part.set_node(node);
    to->add_parts()->Swap(&part);
  }
}

}  // namespace ravenstore::daemon
