#include "daemon/recordings.h"

#include <algorithm>
#include <utility>

#include "daemon/recorder.h"

namespace ravenstore::daemon {

using core::Error;
using core::ErrorCode;

core::Status Recordings::MayBegin(const Caller& caller) const {
  const auto same_user = [&](const auto& entry) { return entry.second == caller.user(); };
  if (std::any_of(users_.begin(), users_.end(), same_user)) {
    return Error{ErrorCode::kLimit,
                 "user " + std::to_string(caller.peer.uid) +
                     " records already, on another connection: end that recording first"};
  }
  if (users_.size() >= kMost && !caller.IsAdmin()) {
    return Error{ErrorCode::kLimit,
                 std::to_string(users_.size()) +
                     " users record already, as many as may at a time: try again later"};
  }
  return core::Ok();
}

void Recordings::Handle(const Caller& caller, uint64_t request, const proto::Record& record) {
  const uint64_t key = caller.key;
  const bool begins = !users_.contains(key);
  if (begins) {
    if (const core::Status may = MayBegin(caller); !may.ok())
      return connections_->Fail(key, request, may.error());
    users_.emplace(key, caller.user());
  }
  Recorder::Options options;
  if (record.client() != 0) options.client = core::ClientId{record.client()};
  options.user = caller.audience();
  options.name = name_of_;
  connections_->PostToLoop(key, Connections::kQuestion, [this, begins, options, request, key] {
    if (begins) loop_->recorders().Start(key, options);
    Recorder& recorder = *loop_->recorders().Find(key);
    proto::DaemonPacket answer;
    answer.set_request(request);
    proto::Recorded* recorded = answer.mutable_recorded();
    recorded->set_ops(recorder.Take());
    recorded->set_ops_total(recorder.ops());
    recorded->set_dropped(recorder.dropped());
    recorded->set_clients(recorder.clients());
    connections_->PostAnswer(key, std::move(answer));
  });
}

void Recordings::Forget(uint64_t key) {
  if (users_.erase(key) == 0) return;
  loop_->mailbox().Post([loop = loop_, key] { loop->recorders().Stop(key); });
}

}  // namespace ravenstore::daemon
