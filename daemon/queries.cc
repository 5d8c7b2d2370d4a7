#include "daemon/queries.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "daemon/admin.h"
#include "daemon/cluster_use.h"
#include "daemon/config.h"
#include "daemon/device_use.h"
#include "ipc/clock.h"
#include "proto/packet.h"

namespace ravenstore::daemon {

using core::ClientId;

namespace {

// The packet's own fields take less than the rest.
constexpr size_t kBytesOfStats = proto::kControlPacketMax - 1024;

}  // namespace

void LeaveOutNodes(size_t bytes_most, proto::Stats* stats) {
  const size_t bytes = stats->ByteSizeLong();
  if (bytes <= bytes_most) return;
  size_t over = bytes - bytes_most;
  auto& nodes = *stats->mutable_cluster()->mutable_nodes();
  // Those with which nothing is shared go first.
  const auto is_needed = [](const proto::NodeUse& node) {
    return node.connected() || node.borrowed() > 0 || node.lent() > 0;
  };
  std::stable_partition(nodes.begin(), nodes.end(), is_needed);
  const int all = nodes.size();
  while (over > 0 && !nodes.empty()) {
    // With its tag, and a length of one byte at least.
    const size_t freed = nodes[nodes.size() - 1].ByteSizeLong() + 2;
    nodes.RemoveLast();
    over -= std::min(over, freed);
  }
  std::ranges::sort(nodes, {}, &proto::NodeUse::name);
  stats->mutable_cluster()->set_nodes_left_out(static_cast<uint32_t>(all - nodes.size()));
}

bool Queries::Handle(const Caller& caller, const proto::ClientPacket& packet) {
  switch (packet.body_case()) {
    case proto::ClientPacket::kExplainFailure:
    case proto::ClientPacket::kStats:
    case proto::ClientPacket::kListTensors:
    case proto::ClientPacket::kExplainTensor:
    case proto::ClientPacket::kListClients: break;
    default: return false;
  }
  Gathered gathered;
  if (packet.has_stats()) {
    // Not in the loop's thread: it opens a file, and reads jobs' pages.
    gathered.resident = ResidentBytes();
    gathered.devices = options_.watch->seen();
    gathered.jobs = options_.ledger->HeldByDevice();
  }
  options_.connections->PostToLoop(
      caller.key, Connections::kQuestion,
      [this, packet, gathered = std::move(gathered), audience = caller.audience(), key = caller.key,
       client = caller.client] {
        options_.connections->PostAnswer(key, AnswerOf(packet, gathered, audience, client));
      });
  return true;
}

void Queries::FillWhole(const Gathered& gathered, bool to_administrator,
                        proto::Stats* stats) const {
  const core::Tick now = ipc::Now();
  const StoreViews& store = options_.loop->store();
  for (size_t i = 0; i < options_.devices.size(); ++i) {
    const device::DeviceInfo& info = options_.devices[i]->info();
    const core::DeviceId id{static_cast<uint16_t>(i)};
    const DeviceUse use{.total = info.total,
                        .store = store.DeviceTier(id).held,
                        .peer_pool = options_.peer_pools[i] + store.Harvested(id),
                        .jobs = gathered.jobs[i],
                        .harvest = options_.loop->harvests().View(id)};
    FillDevice(use, gathered.devices[i], now, /*with_processes=*/to_administrator,
               stats->add_devices());
  }
  if (options_.cluster == nullptr) return;
  FillCluster(options_.cluster->view(), kClusterPiece, /*with_nodes=*/to_administrator,
              stats->mutable_cluster());
  LeaveOutNodes(kBytesOfStats, stats);
}

// Where the tensor's copy is, if that is on other nodes.
void Queries::FillReplica(core::TensorId tensor, bool to_administrator,
                          proto::TensorExplained* explained) const {
  if (!options_.remote_pool) return;
  const core::Explanation why = options_.loop->store().Explain(tensor, ipc::Now());
  if (!why.tensor.has_copy || why.tensor.away != options_.remote_pool) return;
  FillRemote(options_.cluster->view(), kClusterPiece, why.away_offset, why.tensor.size,
             /*with_nodes=*/to_administrator, explained->mutable_remote());
}

proto::DaemonPacket Queries::AnswerOf(const proto::ClientPacket& packet, const Gathered& gathered,
                                      const Audience& audience, ClientId client) const {
  Loop* const loop = options_.loop;
  proto::DaemonPacket answer;
  answer.set_request(packet.request());
  const bool whole =
      packet.has_stats() ? packet.stats().whole_store() : !packet.has_explain_failure();
  if (whole || loop->sessions().Find(client) == nullptr) {
    loop->logs().ReadAll();
  } else {
    loop->logs().ReadOf(client);
  }
  Session* const session = loop->sessions().Find(client);
  switch (packet.body_case()) {
    case proto::ClientPacket::kExplainFailure: {
      const core::SlotId slot{packet.explain_failure().slot()};
      answer.mutable_failure_explained()->set_message(session == nullptr ? ""
                                                                         : session->Failure(slot));
      break;
    }
    case proto::ClientPacket::kStats:
      FillStats(*loop, whole || session == nullptr ? std::nullopt : std::optional(client),
                options_.devices.size(), options_.started, ipc::Now(), answer.mutable_stats());
      answer.mutable_stats()->set_daemon_rss_bytes(gathered.resident);
      if (whole || session == nullptr)
        FillWhole(gathered, /*to_administrator=*/!audience, answer.mutable_stats());
      break;
    case proto::ClientPacket::kListTensors:
      FillTensors(*loop, *options_.names, audience, packet.list_tensors(),
                  answer.mutable_tensors());
      break;
    case proto::ClientPacket::kExplainTensor: {
      const core::TensorId id{packet.explain_tensor().id()};
      if (FillExplanation(*loop, *options_.names, audience, id, ipc::Now(),
                          answer.mutable_tensor_explained())) {
        FillReplica(id, /*to_administrator=*/!audience, answer.mutable_tensor_explained());
        break;
      }
      return FailureOf(packet.request(), {core::ErrorCode::kNotFound,
                                          "there is no tensor " + std::to_string(ToInt(id))});
    }
    default: FillClients(*loop, audience, packet.list_clients(), answer.mutable_clients()); break;
  }
  return answer;
}

}  // namespace ravenstore::daemon
