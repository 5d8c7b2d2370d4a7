// The control thread's questions to the loop, and recordings.
#include <algorithm>
#include <utility>

#include "daemon/admin.h"
#include "daemon/control.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::ErrorCode;
using core::ToInt;

namespace {

// Each keeps some megabytes. One of root or the daemon's user may come besides.
constexpr size_t kRecordingsMax = 16;

}  // namespace

void Control::HandleQuery(Connection& connection, const proto::ClientPacket& packet) {
  const Audience audience =
      IsAdmin(connection.peer.uid) ? Audience() : Audience(connection.peer.uid);
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
  const uint64_t key = connection.key;
  const bool begins = !recordings_.contains(key);
  if (begins) {
    const auto same_user = [&](const auto& entry) { return entry.second == connection.user(); };
    if (std::any_of(recordings_.begin(), recordings_.end(), same_user)) {
      return Fail(connection, request, ErrorCode::kLimit,
                  "user " + std::to_string(connection.peer.uid) +
                      " records already, on another connection: end that recording first");
    }
    if (recordings_.size() >= kRecordingsMax && !IsAdmin(connection.peer.uid)) {
      return Fail(connection, request, ErrorCode::kLimit,
                  std::to_string(recordings_.size()) +
                      " users record already, as many as may at a time: try again later");
    }
    recordings_.emplace(key, connection.user());
  }
  Recorder::Options options;
  if (record.client() != 0) options.client = ClientId{record.client()};
  if (!IsAdmin(connection.peer.uid)) options.user = connection.peer.uid;
  options.name = [this](ClientId client, core::NameId name) {
    return NameOf(*loop_, names_, client, name);
  };
  PostToLoop(connection, kQuestion, [this, begins, options, request, key] {
    if (begins) loop_->StartRecording(key, options);
    Recorder& recorder = *loop_->recorder(key);
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
  if (recordings_.erase(connection.key) == 0) return;
  loop_->mailbox().Post([loop = loop_, key = connection.key] { loop->StopRecording(key); });
}

}  // namespace ravenstore::daemon
