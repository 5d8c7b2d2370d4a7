#include "client/order_job.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <variant>

#include "client/control.h"
#include "client/lease.h"
#include "client/phase.h"
#include "client/program_name.h"
#include "client/ravenstore.h"
#include "client/session.h"
#include "ipc/clock.h"
#include "proto/layout.h"

namespace ravenstore::client {

using core::Error;
using core::ErrorCode;

namespace {
constexpr auto kConnectTimeout = std::chrono::seconds(30);
constexpr auto kTimeoutByDefault = std::chrono::seconds(30);
// For a daemon that waits a little for late answers, twice.
constexpr auto kAnswerGrace = std::chrono::seconds(10);

// What fails is undone, for which there is as much time again.
core::Tick DeadlineOf(const wire::OrderJob& order) {
  constexpr uint64_t kMost = INT64_MAX / 4;
  const core::Duration each(static_cast<int64_t>(std::min(order.timeout_ns, kMost)));
  const core::Duration both = 2 * (each.count() == 0 ? kTimeoutByDefault : each);
  return DeadlineAfter(ipc::Now(), both + kAnswerGrace);
}
}  // namespace

core::Result<wire::JobOrdered> OrderJob(const std::string& socket, const wire::OrderJob& order) {
  const wire::ClientPacket hello{.request = 1,
                                 .body = wire::Hello{.protocol_version = proto::kProtocolVersion,
                                                     .name = ProgramName(),
                                                     .control_only = true,
                                                     .library_version = RAVENSTORE_VERSION}};
  Incoming welcome;
  PhaseWord phase{Phase::kAttached};
  RAVEN_ASSIGN_OR_RETURN(
      const auto link, ControlLink::Connect(ChosenSocket(socket), hello,
                                            DeadlineAfter(ipc::Now(), kConnectTimeout), &welcome));
  RAVEN_RETURN_IF_ERROR(link->Start({.on_packet = [](Incoming) {},
                                     .on_missed = [](const Error&) {},
                                     .on_hangup =
                                         [&] {
                                           phase.store(Phase::kLost, std::memory_order_release);
                                           link->WakeCallers();
                                         }}));
  auto answer = link->Call({.request = 0, .body = order}, DeadlineOf(order), phase);
  link->Stop();
  if (!answer.ok()) {
    if (phase.load() != Phase::kLost) return std::move(answer).error();
    return Error{ErrorCode::kLost, "the daemon is gone, and with it the memory of its clients"};
  }
  if (auto* const ordered = std::get_if<wire::JobOrdered>(&answer->packet.body)) return *ordered;
  return Error{ErrorCode::kCorrupt, "the daemon did not say whether the job did it"};
}

}  // namespace ravenstore::client
