// The control thread's part for legacy jobs: who they are, what they may, and what they ask for.
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/admin.h"
#include "daemon/control.h"
#include "daemon/packets.h"
#include "ipc/clock.h"
#include "proto/layout.h"
#include "proto/packet.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::ErrorCode;

namespace {

// Of a turn (control.cc): it looks through all connections.
constexpr uint32_t kUnitsOfLegacyHello = 8;
constexpr uint32_t kUnitsOfPages = 4;
constexpr uint32_t kUnitsOfExplainJob = 4;

}  // namespace

bool Control::HandleLegacy(Connection& connection, const proto::ClientPacket& packet,
                           std::vector<ipc::UniqueFd>& descriptors) {
  switch (packet.body_case()) {
    case proto::ClientPacket::kLegacyHello:
      HandleLegacyHello(connection, packet.request(), packet.legacy_hello(), descriptors);
      return true;
    case proto::ClientPacket::kLegacyReclaim:
      HandleLegacyReclaim(connection, packet.request(), packet.legacy_reclaim());
      return true;
    case proto::ClientPacket::kLegacyElastic:
      HandleLegacyElastic(connection, packet.request(), descriptors);
      return true;
    case proto::ClientPacket::kLegacyWait:
      HandleLegacyWait(connection, packet.request(), packet.legacy_wait());
      return true;
    default: return false;
  }
}

void Control::HandleLegacyHello(Connection& connection, uint64_t request,
                                const proto::LegacyHello& hello,
                                std::vector<ipc::UniqueFd>& descriptors) {
  if (connection.greeted || descriptors.size() != 1) {
    return Fail(connection, request, ErrorCode::kWrongState,
                "LegacyHello comes first and brings one descriptor");
  }
  if (hello.protocol_version() != proto::kProtocolVersion) {
    return Fail(connection, request, ErrorCode::kVersionMismatch,
                "this daemon speaks protocol " + std::to_string(proto::kProtocolVersion) +
                    ", the interceptor " + std::to_string(hello.protocol_version()));
  }
  turns_.Spend(connection.user(), kUnitsOfLegacyHello);
  // What is none stays with who closes it.
  if (!LegacyLedger::IsPage(descriptors.front().get()))
    return Fail(connection, request, ErrorCode::kInvalidArgument, LegacyLedger::kNoPage);
  if (const core::Status place = TakeLegacyPlace(connection); !place.ok())
    return Fail(connection, request, place.error().code, place.error().message);
  connection.legacy = true;
  LegacyLedger::Newcomer job;
  job.client = next_client_++;
  job.pid = connection.peer.pid;
  job.start_time = connection.peer.start_time;
  job.uid = connection.peer.uid;
  job.name = ForPeople(hello.name());
  job.mode = hello.mode() == "store" || hello.mode() == "elastic" ? hello.mode() : "account";
  job.page = std::move(descriptors.front());
  if (MayLog(connection))
    spdlog::info("legacy job {} attached: pid {}, uid {}, {}", job.client, job.pid, job.uid,
                 job.name);
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_legacy_welcome()->set_client(job.client);
  const auto process_slot = legacy_.Add(connection.key, std::move(job));
  if (!process_slot.ok())
    return Fail(connection, request, process_slot.error().code, process_slot.error().message);
  // An older connection of the process is over for good: its process slot came along.
  std::vector<uint64_t> over;
  for (const auto& [key, other] : connections_) {
    if (other->hung_up && other->client == core::ClientId{} && !legacy_.HasProcessSlot(key))
      over.push_back(key);
  }
  for (const uint64_t key : over) Forget(key);
  answer.mutable_legacy_welcome()->set_slot(process_slot->slot);
  connection.greeted = true;
  std::vector<ipc::UniqueFd> page;
  page.emplace_back(::fcntl(process_slot->page, F_DUPFD_CLOEXEC, 0));
  if (!page.front()) page.clear();
  Send(connection, answer, std::move(page));
}

core::Status Control::TakeLegacyPlace(const Connection& connection) {
  RAVEN_RETURN_IF_ERROR(legacy_places_.Take(connection.user()));
  core::Status page = descriptors_.Take(connection.user());
  if (!page.ok()) legacy_places_.Give(connection.user());
  return page;
}

void Control::GiveLegacyPlace(const Connection& connection) {
  legacy_places_.Give(connection.user());
  descriptors_.Give(connection.user());
  if (connection.elastic) descriptors_.Give(connection.user());
}

void Control::HandleLegacyElastic(Connection& connection, uint64_t request,
                                  std::vector<ipc::UniqueFd>& descriptors) {
  if (connection.greeted || descriptors.size() != 1) {
    return Fail(connection, request, ErrorCode::kWrongState,
                "LegacyElastic comes on a connection of its own and brings one descriptor");
  }
  connection.asked = true;
  const uint64_t job = legacy_.KeyOfProcess(connection.peer.pid);
  Connection* jobs = job == 0 ? nullptr : Find(job);
  if (jobs == nullptr || jobs->elastic) {
    return Fail(connection, request, ErrorCode::kPermission,
                "only a legacy job may send that, and once");
  }
  // What is none stays with who closes it.
  if (!LegacyLedger::IsElasticPage(descriptors.front().get()))
    return Fail(connection, request, ErrorCode::kInvalidArgument, LegacyLedger::kNoElasticPage);
  if (const core::Status place = descriptors_.Take(jobs->user()); !place.ok())
    return Fail(connection, request, place.error().code, place.error().message);
  jobs->elastic = true;
  legacy_.SetElasticPage(job, std::move(descriptors.front()));
}

void Control::HandleExplainJob(Connection& connection, uint64_t request,
                               const proto::ExplainJob& query) {
  turns_.Spend(connection.user(), kUnitsOfExplainJob);
  const Audience audience =
      IsAdmin(connection.peer.uid) ? Audience() : Audience(connection.peer.uid);
  auto explained = legacy_.Explain(audience, query, ipc::Now());
  if (!explained.ok())
    return Fail(connection, request, explained.error().code, explained.error().message);
  proto::DaemonPacket answer;
  answer.set_request(request);
  *answer.mutable_job_explained() = std::move(*explained);
  Send(connection, answer);
}

void Control::HandleLegacyReclaim(Connection& connection, uint64_t request,
                                  const proto::LegacyReclaim& reclaim) {
  if (connection.greeted) {
    return Fail(connection, request, ErrorCode::kWrongState,
                "LegacyReclaim comes on a connection of its own");
  }
  connection.asked = true;
  const uint64_t job = legacy_.KeyOfProcess(connection.peer.pid);
  if (job == 0) {
    return Fail(connection, request, ErrorCode::kPermission, "only a legacy job may ask for that");
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i]->info().uuid != reclaim.uuid()) continue;
    spdlog::debug("legacy job of pid {} asks for {} bytes of device {}", connection.peer.pid,
                  reclaim.bytes(), i);
    const Bytes total = devices_[i]->info().total;
    const Bytes visible = legacy_.VisibleOfJob(job);
    return BeginReclaim({.requester = connection.key,
                         .request = request,
                         .user = connection.user(),
                         .device = i,
                         .bytes = Bytes(reclaim.bytes()),
                         .most = visible == Bytes{0} ? total : std::min(visible, total),
                         .kept = {},
                         .held = {},
                         .free = {}});
  }
  // Not a device of the store's: it took nothing there.
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_legacy_reclaimed();
  Send(connection, answer);
}

void Control::BeginReclaim(ReclaimRequests::Reclaim reclaim) {
  loop_->mailbox().Post([this, reclaim]() mutable {
    const core::DeviceId id{static_cast<uint16_t>(reclaim.device)};
    reclaim.held = loop_->planner().DeviceTier(id).held;
    reclaim.kept = loop_->planner().Guaranteed(id, reclaim.user);
    // The driver may take its time.
    workers_->Run(reclaim.user, [this, reclaim]() mutable {
      const auto free = devices_[reclaim.device]->FreeBytes();
      reclaim.free = free.ok() ? *free : Bytes{0};
      mailbox_.Post([this, reclaim] {
        if (Find(reclaim.requester) == nullptr) return;
        reclaims_.Begin(reclaim, ipc::Now());
        UpdateReclaims();
      });
    });
  });
}

void Control::HandleListLegacy(Connection& connection, uint64_t request,
                               const proto::ListLegacy& query) {
  proto::DaemonPacket answer;
  answer.set_request(request);
  turns_.Spend(connection.user(), kUnitsOfPages);
  const uid_t uid = connection.peer.uid;
  legacy_.Fill(IsAdmin(uid) ? std::nullopt : std::optional(uid), query,
               answer.mutable_legacy_jobs());
  for (proto::LegacyJob& job : *answer.mutable_legacy_jobs()->mutable_jobs()) {
    const auto place = waits_.PlaceOf(static_cast<pid_t>(job.pid()));
    job.set_waiting(place.position);
    job.set_waiting_bytes(place.bytes.count());
  }
  Send(connection, answer);
}

void Control::HandleLegacyWait(Connection& connection, uint64_t request,
                               const proto::LegacyWait& wait) {
  if (connection.greeted) {
    return Fail(connection, request, ErrorCode::kWrongState,
                "LegacyWait comes on a connection of its own");
  }
  connection.asked = true;
  const uint64_t job = legacy_.KeyOfProcess(connection.peer.pid);
  if (job == 0)
    return Fail(connection, request, ErrorCode::kPermission, "only a legacy job may wait");
  // Of a foreign namespace: it could not be told from others.
  if (connection.peer.pid == 0) {
    return Fail(connection, request, ErrorCode::kUnsupported,
                "the daemon does not see the process's number");
  }
  const auto device = std::find_if(devices_.begin(), devices_.end(), [&](const auto& each) {
    return each->info().uuid == wait.uuid();
  });
  if (device == devices_.end()) {
    return Fail(connection, request, ErrorCode::kNotFound,
                "this daemon has no such device, and nobody waits for it");
  }
  const Bytes total = (*device)->info().total;
  const Bytes visible = legacy_.VisibleOfJob(job);
  Bytes bytes = wait.bytes() == 0 ? total : std::min(Bytes(wait.bytes()), total);
  if (visible != Bytes{0}) bytes = std::min(bytes, visible);
  const bool may_go = waits_.Add({.process = {connection.peer.pid, connection.peer.start_time},
                                  .user = connection.user(),
                                  .device = static_cast<size_t>(device - devices_.begin()),
                                  .bytes = bytes,
                                  .connection = connection.key,
                                  .request = request});
  if (may_go) return TellTurn(connection, request, 0, bytes);
  SetWaitTimer();
}

void Control::TellTurn(Connection& connection, uint64_t request, uint32_t position, Bytes bytes) {
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_legacy_turn()->set_position(position);
  answer.mutable_legacy_turn()->set_bytes(bytes.count());
  Send(connection, answer);
}

void Control::UpdateWaits() {
  uint64_t expirations = 0;
  [[maybe_unused]] const auto size = ::read(wait_timer_.get(), &expirations, sizeof(expirations));
  if (waits_.empty()) return;
  loop_->mailbox().Post([this] {
    std::vector<Bytes> held;
    for (size_t i = 0; i < devices_.size(); ++i)
      held.push_back(loop_->planner().DeviceTier(core::DeviceId{static_cast<uint16_t>(i)}).held);
    workers_->Run(kNoUser, [this, held = std::move(held)] {
      std::vector<Bytes> used;
      for (size_t i = 0; i < devices_.size(); ++i) {
        const auto free = devices_[i]->FreeBytes();
        const Bytes not_the_stores = Minus(devices_[i]->info().total, held[i]);
        used.push_back(free.ok() ? Minus(not_the_stores, *free) : not_the_stores);
      }
      mailbox_.Post([this, used = std::move(used)] { OnUsedForWaits(used); });
    });
  });
}

void Control::OnUsedForWaits(const std::vector<Bytes>& used) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (!waits_.WaitsFor(i)) continue;
    const auto& info = devices_[i]->info();
    for (const auto& told : waits_.Update(i, info.total, used[i], legacy_.UsesOf(info.uuid))) {
      Connection* connection = Find(told.connection);
      // Who does not read is told his turn alone.
      if (connection == nullptr || (told.position != 0 && !connection->queue.empty())) continue;
      if (told.position == 0 && MayLog(*connection))
        spdlog::info("legacy job of pid {} waits no more", connection->peer.pid);
      TellTurn(*connection, told.request, told.position, told.bytes);
    }
  }
  SetWaitTimer();
}

// However many come and go, it is looked at no more often than that.
void Control::SetWaitTimer() {
  constexpr long kLookNs = 50'000'000;
  itimerspec armed{};
  if (waits_.empty() || ::timerfd_gettime(wait_timer_.get(), &armed) != 0) return;
  if (armed.it_value.tv_nsec != 0) return;
  armed.it_value.tv_nsec = kLookNs;
  ::timerfd_settime(wait_timer_.get(), 0, &armed, nullptr);
}

void Control::HandlePause(Connection& connection, uint64_t request,
                          const proto::SetLimits& limits) {
  if (const core::Status paused = legacy_.SetPaused(limits.client(), limits.paused());
      !paused.ok()) {
    return Fail(connection, request, paused.error().code, paused.error().message);
  }
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_limits_set()->set_visible_memory(legacy_.VisibleOfClient(limits.client()).count());
  answer.mutable_limits_set()->set_paused(limits.paused());
  Send(connection, answer);
}

bool Control::HandleVisibleMemory(Connection& connection, uint64_t request,
                                  const proto::SetLimits& limits) {
  const bool set = limits.visible_memory() != 0;
  std::optional<Bytes> visible;
  if (limits.visible_memory() != proto::kLimitNotSet) visible = Bytes(limits.visible_memory());
  if (limits.client() == 0) {
    if (set) legacy_.SetTenant(limits.uid(), visible);
    return false;
  }
  if (!legacy_.HasClient(limits.client())) return false;
  if (set) legacy_.SetClient(limits.client(), visible);
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_limits_set()->set_visible_memory(legacy_.VisibleOfClient(limits.client()).count());
  Send(connection, answer);
  return true;
}

std::vector<Bytes> Control::UsedByOthers(const std::vector<Bytes>& held,
                                         const std::vector<Bytes>& free) const {
  std::vector<Bytes> used;
  for (size_t i = 0; i < free.size(); ++i) {
    // Not what their pages say: a page says what its job likes.
    const Bytes left = Minus(options_.capacities[i], held[i]);
    used.push_back(Minus(left, free[i]));
  }
  return used;
}

void Control::UpdateReclaims() {
  uint64_t expirations = 0;
  [[maybe_unused]] const auto size =
      ::read(reclaim_timer_.get(), &expirations, sizeof(expirations));
  // While a job waits nothing goes back to the store anyway.
  loop_->mailbox().Post([this, ask_driver = !reclaims_.waiting()] {
    std::vector<Bytes> held;
    for (size_t i = 0; i < devices_.size(); ++i) {
      held.push_back(loop_->planner().DeviceTier(core::DeviceId{static_cast<uint16_t>(i)}).held);
    }
    if (!ask_driver) {
      mailbox_.Post([this, held = std::move(held)] { OnHeld(held, {}); });
      return;
    }
    workers_->Run(kNoUser, [this, held = std::move(held)] {
      std::vector<Bytes> free;
      for (const auto& device : devices_) {
        const auto bytes = device->FreeBytes();
        free.push_back(bytes.ok() ? *bytes : Bytes{0});
      }
      mailbox_.Post([this, held, free = std::move(free)] { OnHeld(held, free); });
    });
  });
}

void Control::OnHeld(const std::vector<Bytes>& held, const std::vector<Bytes>& free) {
  const ReclaimRequests::Outcome outcome =
      reclaims_.Update(held, UsedByOthers(held, free), ipc::Now());
  for (const auto& limit : outcome.limits) {
    loop_->mailbox().Post([loop = loop_, limit] {
      loop->SetDeviceLimit(core::DeviceId{static_cast<uint16_t>(limit.device)}, limit.capacity);
    });
  }
  for (const auto& answer : outcome.answers) {
    Connection* connection = Find(answer.requester);
    if (connection == nullptr) continue;
    proto::DaemonPacket packet;
    packet.set_request(answer.request);
    packet.mutable_legacy_reclaimed()->set_bytes(answer.given.count());
    Send(*connection, packet);
  }
  SetReclaimTimer();
}

void Control::SetReclaimTimer() {
  constexpr long kSoonNs = 1'000'000;
  constexpr long kSometimesNs = 500'000'000;
  itimerspec when{};
  if (reclaims_.waiting()) {
    when.it_value.tv_nsec = kSoonNs;
  } else if (reclaims_.lowered()) {
    when.it_value.tv_nsec = kSometimesNs;
  }
  ::timerfd_settime(reclaim_timer_.get(), 0, &when, nullptr);
}

}  // namespace ravenstore::daemon
