// The control thread's part for legacy jobs: who they are, what they may, and what they ask for.
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "daemon/control.h"
#include "ipc/clock.h"
#include "proto/layout.h"
#include "proto/packet.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::ErrorCode;

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
  if (legacy_.size() >= options_.clients_max) {
    return Fail(connection, request, ErrorCode::kLimit, "the daemon serves no more jobs");
  }
  // What is none stays with who closes it.
  if (!LegacyLedger::IsPage(descriptors.front().get()))
    return Fail(connection, request, ErrorCode::kInvalidArgument, LegacyLedger::kNoPage);
  LegacyLedger::Newcomer job;
  job.client = next_client_++;
  job.pid = connection.peer.pid;
  job.start_time = connection.peer.start_time;
  job.uid = connection.peer.uid;
  job.name = ForPeople(hello.name());
  job.mode = hello.mode() == "store" ? "store" : "account";
  job.page = std::move(descriptors.front());
  spdlog::info("legacy job {} attached: pid {}, uid {}, {}", job.client, job.pid, job.uid,
               job.name);
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_legacy_welcome()->set_client(job.client);
  const auto seat = legacy_.Add(connection.key, std::move(job));
  if (!seat.ok()) return Fail(connection, request, seat.error().code, seat.error().message);
  // An older connection of the process is over for good: its seat came along.
  std::erase_if(connections_, [this](const auto& entry) {
    const Connection& other = *entry.second;
    return other.hung_up && other.client == core::ClientId{} && !legacy_.IsSeated(other.key);
  });
  closed_one_ = true;
  answer.mutable_legacy_welcome()->set_slot(seat->slot);
  connection.greeted = true;
  std::vector<ipc::UniqueFd> page;
  page.emplace_back(::fcntl(seat->page, F_DUPFD_CLOEXEC, 0));
  if (!page.front()) page.clear();
  Send(connection, answer, std::move(page));
}

void Control::HandleLegacyYield(Connection& connection, uint64_t request,
                                const proto::LegacyYield& yield) {
  if (connection.greeted) {
    return Fail(connection, request, ErrorCode::kWrongState,
                "LegacyYield comes on a connection of its own");
  }
  connection.yields = true;
  if (legacy_.KeyOfProcess(connection.peer.pid) == 0) {
    return Fail(connection, request, ErrorCode::kPermission, "only a legacy job may ask for that");
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i]->info().uuid != yield.uuid()) continue;
    spdlog::info("legacy job of pid {} asks for {} bytes of device {}", connection.peer.pid,
                 yield.bytes(), i);
    return BeginYield(connection.key, request, i, Bytes(yield.bytes()));
  }
  // Not a device of the store's: it took nothing there.
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_legacy_yielded();
  Send(connection, answer);
}

void Control::BeginYield(uint64_t asker, uint64_t request, size_t device, Bytes bytes) {
  const core::TenantId tenant = TenantOf(Find(asker)->peer.uid);
  loop_->mailbox().Post(
      [this, tenant, ask = Yields::Ask{asker, request, device, bytes, {}, {}}]() mutable {
        const core::DeviceId id{static_cast<uint16_t>(ask.device)};
        ask.held = loop_->planner().DeviceTier(id).held;
        // The driver may take its time.
        workers_->Run(tenant, [this, ask]() mutable {
          const auto free = devices_[ask.device]->FreeBytes();
          ask.free = free.ok() ? *free : devices_[ask.device]->info().total;
          mailbox_.Post([this, ask] {
            if (Find(ask.asker) == nullptr) return;
            yields_.Begin(ask, ipc::Now());
            LookAtYields();
          });
        });
      });
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

std::vector<Bytes> Control::LegacyUse() const {
  std::vector<Bytes> used;
  for (const auto& device : devices_) used.push_back(Bytes(legacy_.UsedOf(device->info().uuid)));
  return used;
}

void Control::LookAtYields() {
  uint64_t expirations = 0;
  [[maybe_unused]] const auto size = ::read(yield_timer_.get(), &expirations, sizeof(expirations));
  loop_->mailbox().Post([this] {
    std::vector<Bytes> held;
    for (size_t i = 0; i < devices_.size(); ++i) {
      held.push_back(loop_->planner().DeviceTier(core::DeviceId{static_cast<uint16_t>(i)}).held);
    }
    mailbox_.Post([this, held = std::move(held)] { OnHeld(held); });
  });
}

void Control::OnHeld(const std::vector<Bytes>& held) {
  const Yields::Outcome outcome = yields_.Look(held, LegacyUse(), ipc::Now());
  for (const auto& limit : outcome.limits) {
    loop_->mailbox().Post([loop = loop_, limit] {
      loop->SetDeviceLimit(core::DeviceId{static_cast<uint16_t>(limit.device)}, limit.capacity);
    });
  }
  for (const auto& answer : outcome.answers) {
    Connection* connection = Find(answer.asker);
    if (connection == nullptr) continue;
    proto::DaemonPacket packet;
    packet.set_request(answer.request);
    packet.mutable_legacy_yielded()->set_bytes(answer.given.count());
    Send(*connection, packet);
  }
  SetYieldTimer();
}

void Control::SetYieldTimer() {
  constexpr long kSoonNs = 1'000'000;
  constexpr long kSometimesNs = 500'000'000;
  itimerspec when{};
  if (yields_.waiting()) {
    when.it_value.tv_nsec = kSoonNs;
  } else if (yields_.lowered()) {
    when.it_value.tv_nsec = kSometimesNs;
  }
  ::timerfd_settime(yield_timer_.get(), 0, &when, nullptr);
}

}  // namespace ravenstore::daemon
