#include "daemon/queries.h"

#include <optional>
#include <string>
#include <utility>

#include "daemon/admin.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::ClientId;

bool Queries::Handle(const Caller& caller, const proto::ClientPacket& packet) {
  switch (packet.body_case()) {
    case proto::ClientPacket::kExplainFailure:
    case proto::ClientPacket::kStats:
    case proto::ClientPacket::kListTensors:
    case proto::ClientPacket::kExplainTensor:
    case proto::ClientPacket::kListClients: break;
    default: return false;
  }
  // Not in the loop's thread: it opens a file.
  const uint64_t resident = packet.has_stats() ? ResidentBytes() : 0;
  connections_->PostToLoop(caller.key, Connections::kQuestion,
                           [this, packet, resident, audience = caller.audience(), key = caller.key,
                            client = caller.client] {
                             proto::DaemonPacket answer = AnswerOf(packet, audience, client);
                             if (answer.has_stats())
                               answer.mutable_stats()->set_daemon_rss_bytes(resident);
                             connections_->PostAnswer(key, std::move(answer));
                           });
  return true;
}

proto::DaemonPacket Queries::AnswerOf(const proto::ClientPacket& packet, const Audience& audience,
                                      ClientId client) const {
  proto::DaemonPacket answer;
  answer.set_request(packet.request());
  const bool whole =
      packet.has_stats() ? packet.stats().whole_store() : !packet.has_explain_failure();
  if (whole || loop_->FindSession(client) == nullptr) {
    loop_->ReadLogs();
  } else {
    loop_->ReadLog(client);
  }
  Session* const session = loop_->FindSession(client);
  switch (packet.body_case()) {
    case proto::ClientPacket::kExplainFailure: {
      const core::SlotId slot{packet.explain_failure().slot()};
      answer.mutable_failure_explained()->set_message(session == nullptr ? ""
                                                                         : session->Failure(slot));
      break;
    }
    case proto::ClientPacket::kStats:
      FillStats(*loop_, whole || session == nullptr ? std::nullopt : std::optional(client),
                devices_, started_, ipc::Now(), answer.mutable_stats());
      break;
    case proto::ClientPacket::kListTensors:
      FillTensors(*loop_, *names_, audience, packet.list_tensors(), answer.mutable_tensors());
      break;
    case proto::ClientPacket::kExplainTensor: {
      const core::TensorId id{packet.explain_tensor().id()};
      if (FillExplanation(*loop_, *names_, audience, id, ipc::Now(),
                          answer.mutable_tensor_explained())) {
        break;
      }
      return FailureOf(packet.request(), {core::ErrorCode::kNotFound,
                                          "there is no tensor " + std::to_string(ToInt(id))});
    }
    default: FillClients(*loop_, audience, packet.list_clients(), answer.mutable_clients()); break;
  }
  return answer;
}

}  // namespace ravenstore::daemon
