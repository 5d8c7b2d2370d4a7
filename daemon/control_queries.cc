// The control thread's questions to the loop, and recordings.
#include <utility>

#include "daemon/admin.h"
#include "daemon/control.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::ErrorCode;
using core::ToInt;

void Control::HandleQuery(Connection& connection, const proto::ClientPacket& packet) {
  const Audience audience = IsAdmin(connection) ? Audience() : Audience(connection.peer.uid);
  const uint64_t resident = packet.has_stats() ? ResidentBytes() : 0;
  auto answer_it = [this, packet, audience, resident, key = connection.key,
                    client = connection.client] {
    proto::DaemonPacket answer;
    answer.set_request(packet.request());
    const bool whole =
        packet.has_stats() ? packet.stats().whole_store() : !packet.has_explain_failure();
    if (whole || loop_->FindSession(client) == nullptr) {
      loop_->ReadLogs();
    } else {
      loop_->ReadLog(client);
    }
    if (packet.has_explain_failure()) {
      Session* session = loop_->FindSession(client);
      const core::SlotId slot{packet.explain_failure().slot()};
      answer.mutable_failure_explained()->set_message(session == nullptr ? ""
                                                                         : session->Failure(slot));
    } else if (packet.has_stats()) {
      const bool own = !packet.stats().whole_store() && loop_->FindSession(client) != nullptr;
      FillStats(*loop_, own ? std::optional(client) : std::nullopt, devices_.size(), started_,
                ipc::Now(), answer.mutable_stats());
      answer.mutable_stats()->set_daemon_rss_bytes(resident);
    } else if (packet.has_list_tensors()) {
      FillTensors(*loop_, names_, audience, packet.list_tensors(), answer.mutable_tensors());
    } else if (packet.has_explain_tensor()) {
      const core::TensorId id{packet.explain_tensor().id()};
      if (!FillExplanation(*loop_, names_, audience, id, ipc::Now(),
                           answer.mutable_tensor_explained())) {
        answer.mutable_failure()->set_code(static_cast<uint32_t>(ErrorCode::kNotFound));
        answer.mutable_failure()->set_message("there is no tensor " + std::to_string(ToInt(id)));
      }
    } else {
      FillClients(*loop_, audience, packet.list_clients(), answer.mutable_clients());
    }
    PostAnswer(key, std::move(answer));
  };
  PostToLoop(connection, kQuestion, std::move(answer_it));
}

void Control::HandleRecord(Connection& connection, uint64_t request, const proto::Record& record) {
  if (recording_ != 0 && recording_ != connection.key) {
    return Fail(connection, request, ErrorCode::kLimit, "another recording is under way");
  }
  const bool begins = recording_ == 0;
  recording_ = connection.key;
  Recorder::Options options;
  if (record.client() != 0) options.client = ClientId{record.client()};
  if (!IsAdmin(connection)) options.user = connection.peer.uid;
  options.name = [this](ClientId client, core::NameId name) {
    return NameOf(*loop_, names_, client, name);
  };
  PostToLoop(connection, kQuestion, [this, begins, options, request, key = connection.key] {
    if (begins) loop_->StartRecording(options);
    Recorder& recorder = *loop_->recorder();
    proto::DaemonPacket answer;
    answer.set_request(request);
    proto::Recorded* recorded = answer.mutable_recorded();
    recorded->set_ops(recorder.Take());
    recorded->set_ops_total(recorder.ops());
    recorded->set_dropped(recorder.dropped());
    recorded->set_clients(recorder.clients());
    PostAnswer(key, std::move(answer));
  });
}

void Control::EndRecording(const Connection& connection) {
  if (recording_ != connection.key) return;
  recording_ = 0;
  loop_->mailbox().Post([loop = loop_] { loop->StopRecording(); });
}

}  // namespace ravenstore::daemon
