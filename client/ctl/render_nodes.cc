#include "client/ctl/render_nodes.h"

#include <cstdint>

#include "client/ctl/json.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "core/text_table.h"

namespace ravenstore::client::ctl {
namespace {

std::string Size(uint64_t bytes) {
  return core::SizeText(core::Bytes(bytes));
}

// Of a lease of `bytes`.
std::string LeaseText(uint64_t bytes, int64_t left_ns) {
  if (bytes == 0) return "-";
  return left_ns > 0 ? DurationText(static_cast<uint64_t>(left_ns)) : "expired";
}

// Both directions of one loan.
std::string MovedText(uint64_t written, uint64_t read) {
  return Size(written) + " / " + Size(read);
}

}  // namespace

std::string ClusterLine(const proto::Stats& stats) {
  if (!stats.has_cluster()) return "";
  const proto::ClusterUse& cluster = stats.cluster();
  std::string text = "node " + core::Printable(cluster.node()) + " at " +
                     core::Printable(cluster.address()) + ": " + Size(cluster.held()) + " of " +
                     Size(cluster.size()) + " borrowed, " + Size(cluster.lent()) + " of " +
                     Size(cluster.lendable()) + " lent";
  if (cluster.bytes_per_second() > 0) text += ", " + Size(cluster.bytes_per_second()) + "/s";
  if (!cluster.discovery().empty()) text += "; " + core::Printable(cluster.discovery());
  if (cluster.nodes_left_out() > 0)
    text += "; the daemon's answer has no room for " + std::to_string(cluster.nodes_left_out()) +
            " more nodes, which are left out";
  return text + "\n";
}

std::string NodesText(const proto::Stats& stats, size_t columns) {
  if (!stats.has_cluster()) {
    return "there is no cluster: cluster.node in the daemon's configuration names this node of one "
           "(docs/CLUSTER.md)\n";
  }
  if (stats.cluster().nodes().empty()) return ClusterLine(stats) + "no other node is known\n";
  core::TextTable table("<<>>>>>>>>");
  table.Row({"NODE", "ADDRESS", "BORROWED", "OFFERS", "LEASE", "OUT / IN", "LENT", "RECALLED",
             "LEASE", "OUT / IN"});
  for (const proto::NodeUse& node : stats.cluster().nodes()) {
    table.Row({core::Printable(node.name()),
               node.address().empty() ? "-" : core::Printable(node.address()),
               Size(node.borrowed()), node.connected() ? Size(node.offered()) : "-",
               LeaseText(node.borrowed(), node.lease_left_ns()),
               MovedText(node.written(), node.read()), Size(node.lent()), Size(node.recalled()),
               LeaseText(node.lent(), node.lent_lease_left_ns()),
               MovedText(node.read_here(), node.written_here())});
  }
  return ClusterLine(stats) + table.Text(columns);
}

std::string NodesJson(const proto::Stats& stats) {
  JsonWriter json;
  json.BeginObject();
  if (!stats.has_cluster()) return json.EndObject().Take();
  const proto::ClusterUse& cluster = stats.cluster();
  json.Field("node", cluster.node())
      .Field("address", cluster.address())
      .Field("size_bytes", cluster.size())
      .Field("held_bytes", cluster.held())
      .Field("lendable_bytes", cluster.lendable())
      .Field("lent_bytes", cluster.lent())
      .Field("discovery", cluster.discovery())
      .Field("bytes_per_second", cluster.bytes_per_second())
      .Field("nodes_left_out", cluster.nodes_left_out())
      .BeginArray("nodes");
  for (const proto::NodeUse& node : cluster.nodes()) {
    json.BeginObject()
        .Field("name", node.name())
        .Field("address", node.address())
        .Field("connected", node.connected())
        .Field("borrowed_bytes", node.borrowed())
        .Field("offered_bytes", node.offered())
        .Field("lease_left_s", static_cast<double>(node.lease_left_ns()) / 1e9)
        .Field("written_bytes", node.written())
        .Field("read_bytes", node.read())
        .Field("lent_bytes", node.lent())
        .Field("recalled_bytes", node.recalled())
        .Field("lent_lease_left_s", static_cast<double>(node.lent_lease_left_ns()) / 1e9)
        .Field("written_here_bytes", node.written_here())
        .Field("read_here_bytes", node.read_here())
        .EndObject();
  }
  return json.EndArray().EndObject().Take();
}

}  // namespace ravenstore::client::ctl
