#include "client/ctl/admit.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <sstream>
#include <utility>

#include "client/ctl/session.h"
#include "core/size_text.h"
#include "ipc/clock.h"
#include "ipc/socket.h"

namespace ravenstore::client::ctl {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;

namespace {

// A daemon that takes longer to accept is as good as none.
constexpr core::Duration kConnect = std::chrono::seconds(10);
// A wait without an end, where the system wants one.
constexpr core::Duration kLong = std::chrono::hours(24);

// The next packet; nothing: the daemon hung up.
Result<std::optional<proto::DaemonPacket>> Next(int socket, core::Tick deadline) {
  for (;;) {
    const core::Tick until = std::min(deadline, ipc::Now() + kLong);
    const core::Status readable = ipc::WaitReadable(socket, until);
    const bool is_late = !readable.ok() && readable.error().code == ErrorCode::kTimedOut;
    if (is_late && ipc::Now() < deadline) continue;
    RAVEN_RETURN_IF_ERROR(readable);
    auto packet = ipc::Receive(socket, false);
    if (!packet.ok() && packet.error().code == ErrorCode::kTimedOut) continue;
    if (!packet.ok()) return std::move(packet).error();
    if (!packet->has_value()) return std::optional<proto::DaemonPacket>();
    proto::DaemonPacket answer;
    if (!answer.ParseFromString((*packet)->bytes))
      return Error{ErrorCode::kCorrupt, "the daemon's answer is malformed"};
    return std::optional(std::move(answer));
  }
}

}  // namespace

proto::ClientPacket AdmitPacket(const Estimate& estimate, const std::vector<std::string>& uuids,
                                const std::string& name) {
  proto::ClientPacket packet;
  packet.set_request(1);
  proto::AdmitJob& admit = *packet.mutable_admit_job();
  for (const std::string& uuid : uuids) admit.add_uuids(uuid);
  admit.set_bytes(estimate.bytes.count());
  admit.set_margin(estimate.margin.count());
  admit.set_source(estimate.source);
  admit.set_model(estimate.model);
  admit.set_name(name);
  if (estimate.compute) admit.set_compute(*estimate.compute);
  if (estimate.link) admit.set_link(*estimate.link);
  return packet;
}

Result<std::vector<std::string>> VisibleDevices(const std::string& visible,
                                                const proto::Welcome& welcome) {
  std::vector<std::string> uuids;
  std::istringstream words(visible);
  for (std::string word; std::getline(words, word, ',');) {
    const auto number = core::ParseNumber(word);
    const auto& devices = welcome.devices();
    const auto found = std::find_if(devices.begin(), devices.end(), [&](const auto& device) {
      return !word.empty() && device.uuid().starts_with(word);
    });
    if (number && *number < static_cast<uint64_t>(devices.size())) {
      uuids.push_back(devices[static_cast<int>(*number)].uuid());
    } else if (!number && found != devices.end()) {
      uuids.push_back(found->uuid());
    } else {
      return Error{ErrorCode::kInvalidArgument,
                   "CUDA_VISIBLE_DEVICES names '" + word + "', which is no device of the daemon's"};
    }
  }
  return uuids;
}

Result<Admitted> AwaitAdmission(const std::string& socket, const proto::ClientPacket& packet,
                                core::Tick deadline,
                                const std::function<void(const proto::LegacyTurn&)>& on_turn) {
  auto connected = ipc::ConnectToDaemon(socket, std::min(deadline, ipc::Now() + kConnect));
  if (!connected.ok()) return std::move(connected).error();
  RAVEN_RETURN_IF_ERROR(ipc::Send(connected->get(), packet.SerializeAsString()));
  for (;;) {
    RAVEN_ASSIGN_OR_RETURN(const auto answer, Next(connected->get(), deadline));
    if (!answer) return Error{ErrorCode::kUnavailable, "the daemon is gone"};
    if (answer->has_failure()) {
      return Error{static_cast<ErrorCode>(answer->failure().code()), answer->failure().message()};
    }
    if (!answer->has_legacy_turn()) continue;
    const proto::LegacyTurn& turn = answer->legacy_turn();
    if (turn.position() == 0) return Admitted{turn.uuid(), Bytes(turn.bytes()), turn.words()};
    on_turn(turn);
  }
}

}  // namespace ravenstore::client::ctl
