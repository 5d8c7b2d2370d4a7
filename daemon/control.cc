#include "daemon/control.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "core/check.h"
#include "daemon/admin.h"
#include "daemon/packets.h"
#include "ipc/clock.h"
#include "proto/packet.h"
#include "proto/version.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::Error;
using core::ErrorCode;
using core::ToInt;

namespace {

constexpr uint64_t kListenerKey = 0;
constexpr uint64_t kMailboxKey = ~uint64_t{0};
constexpr uint64_t kReclaimTimerKey = ~uint64_t{0} - 1;
constexpr uint64_t kWaitTimerKey = ~uint64_t{0} - 2;
// A pidfd's key is its connection's with this bit.
constexpr uint64_t kPidBit = uint64_t{1} << 63;
constexpr int kEpollEvents = 256;
// A turn's units of work for all users. A unit is some ten microseconds: a small message is one,
// and what takes longer some more. An operation of a client takes about ten turns
// of this thread, so a turn that others fill must be short.
constexpr uint32_t kUnitsPerTurn = 32;
constexpr uint32_t kUnitsLeast = 4;
constexpr uint32_t kUnitsOfDescriptors = 8;
constexpr uint32_t kUnitsOfAttach = 16;
constexpr size_t kBytesOfUnit = 4096;
// Messages with a descriptor that a user may send at once, and how often beyond these. A job that
// knows nothing of us sends one when it begins; each takes four threads of the daemon some time.
constexpr core::Duration kDescriptorsEvery = std::chrono::milliseconds(2);
constexpr int64_t kDescriptorsAtOnce = 256;
constexpr core::Duration kDescriptorWaitMost = std::chrono::seconds(4);
// A connection that says nothing is closed.
constexpr core::Duration kSilenceMax = std::chrono::seconds(10);
// Its segment and its doorbell.
constexpr size_t kDescriptorsOfClient = 2;
// Of the process's those that no user's doing takes.
constexpr uint64_t kDescriptorsKept = 256;
// A client that lets so much pile up has stopped reading for good; what it misses are slabs it will
// ask for in vain, until it is killed or goes on.
constexpr size_t kQueueMax = 4096;

// The descriptors that users' connections may take. A limit that is lowered later is met by
// errors of the system.
uint64_t DescriptorsForUsers() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kDescriptorsKept;
  return std::max<uint64_t>(limit.rlim_cur, 2 * kDescriptorsKept) - kDescriptorsKept;
}

// The Welcome's: the segment's and the doorbell's, as long as the packet waits.
core::Result<std::vector<ipc::UniqueFd>> DescriptorsFor(const Attachment& attachment) {
  std::vector<ipc::UniqueFd> descriptors;
  for (const int descriptor : {attachment.segment.fd(), attachment.doorbell.fd()}) {
    descriptors.emplace_back(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    if (!descriptors.back()) {
      return Error{ErrorCode::kLimit,
                   "the daemon has no file descriptors left: end some jobs, or raise LimitNOFILE "
                   "of its service"};
    }
  }
  return descriptors;
}

}  // namespace

Control::Control(ControlOptions options, device::Devices devices, Loop* loop, WorkerPool* workers)
    : options_(std::move(options)),
      devices_(std::move(devices)),
      loop_(loop),
      workers_(workers),
      turns_(kUnitsPerTurn, kUnitsLeast),
      descriptor_limit_(kDescriptorsEvery, kDescriptorsAtOnce, kDescriptorWaitMost),
      clients_("clients (clients_max of the configuration)", options_.clients_max),
      legacy_places_("legacy jobs (clients_max of the configuration)", options_.clients_max),
      descriptors_("file descriptors of the daemon (LimitNOFILE of its service)",
                   DescriptorsForUsers()),
      started_(ipc::Now()),
      legacy_(options_.visible_memory),
      reclaims_(options_.capacities) {}

Control::~Control() {
  for (auto& [key, connection] : connections_)
    ending_->Close(std::move(connection->socket), connection->peer.uid);
  if (ending_) ending_->EndTurn();
}

core::Result<std::unique_ptr<Control>> Control::Create(ControlOptions options,
                                                       device::Devices devices, Loop* loop,
                                                       WorkerPool* workers) {
  std::unique_ptr<Control> control(
      new Control(std::move(options), std::move(devices), loop, workers));
  RAVEN_RETURN_IF_ERROR(control->Init());
  return control;
}

core::Status Control::Init() {
  RAVEN_ASSIGN_OR_RETURN(auto listener, ipc::Listen(options_.socket_path, options_.socket_mode,
                                                    options_.socket_group));
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return Error{ErrorCode::kSystem, "epoll_create1 failed"};
  reclaim_timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  wait_timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!reclaim_timer_ || !wait_timer_) return Error{ErrorCode::kSystem, "timerfd_create failed"};
  ending_.emplace(epoll_.get(), &mailbox_, [this] { acceptor_->OnClosed(); });
  acceptor_.emplace(std::move(listener),
                    Acceptor::Options{
                        .epoll = epoll_.get(),
                        .key = kListenerKey,
                        .clients = options_.clients_max,
                        .turns = &turns_,
                        .descriptors = &descriptors_,
                        .ending = &*ending_,
                        .may_connect = [this](uid_t uid) { return MayConnect(uid); },
                        .admit = [this](ipc::UniqueFd& socket, ipc::Peer& peer,
                                        bool reserved) { return Admit(socket, peer, reserved); },
                    });
  RAVEN_RETURN_IF_ERROR(acceptor_->Begin());
  if (!Watch(mailbox_.descriptor(), kMailboxKey, EPOLLIN) ||
      !Watch(reclaim_timer_.get(), kReclaimTimerKey, EPOLLIN) ||
      !Watch(wait_timer_.get(), kWaitTimerKey, EPOLLIN)) {
    return Error{ErrorCode::kSystem, "epoll_ctl failed (fs.epoll.max_user_watches)"};
  }
  return core::Ok();
}

bool Control::Watch(int descriptor, uint64_t key, uint32_t events, bool change) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  return ::epoll_ctl(epoll_.get(), change ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, descriptor, &event) == 0;
}

bool Control::UpdateInterest(Connection& connection) {
  if (connection.hung_up) return true;
  uint32_t events = 0;
  if (connection.Reads()) events |= EPOLLIN;
  if (!connection.queue.empty()) events |= EPOLLOUT;
  // A hang-up is told even so: once, and again when the connection is read.
  if (events == 0) events = EPOLLET;
  if (events == connection.watched) return true;
  const bool known = connection.watched != 0;
  if (!Watch(connection.socket.get(), connection.key, events, known)) return false;
  connection.watched = events;
  return true;
}

bool Control::MayLog(const Connection& connection) {
  if (log_budget_.Allow(connection.peer.uid, ipc::Now())) return true;
  log_due_ = log_budget_.NextDue();
  return false;
}

void Control::LogWhatWasLeftOut() {
  const core::Tick now = ipc::Now();
  if (now < log_due_) return;
  for (const auto& [uid, lines] : log_budget_.TakeDue(now))
    spdlog::info("{} lines about user {} were left out", lines, uid);
  log_due_ = log_budget_.NextDue();
}

int Control::NextTimer() const {
  core::Tick next = std::min(acceptor_->paused_until(), log_due_);
  if (!silent_.empty()) next = std::min(next, silent_.front().first);
  if (!paced_.empty()) next = std::min(next, paced_.begin()->first);
  if (next == core::kNever) return -1;
  const auto left = std::max(next - ipc::Now(), core::Duration(0));
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

void Control::Run() {
  std::array<epoll_event, kEpollEvents> events;
  while (!stopping_.load(std::memory_order_acquire)) {
    const int n = ::epoll_wait(epoll_.get(), events.data(), kEpollEvents, NextTimer());
    turns_.BeginTurn();
    for (int i = 0; i < n; ++i) {
      const uint64_t key = events[i].data.u64;
      if (key == kListenerKey) {
        acceptor_->AcceptSome();
      } else if (key == kMailboxKey) {
        mailbox_.RunSome(mailbox_.size());
      } else if (key == kReclaimTimerKey) {
        UpdateReclaims();
      } else if (key == kWaitTimerKey) {
        UpdateWaits();
      } else if (Connection* connection = Find(key & ~kPidBit)) {
        if ((key & kPidBit) != 0) {
          OnDeath(*connection);
          continue;
        }
        if ((events[i].events & EPOLLOUT) != 0) OnWritable(*connection);
        if ((events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && connection->Reads())
          OnReadable(*connection);
      }
    }
    EndSilent();
    ReadPaced();
    LogWhatWasLeftOut();
    ending_->EndTurn();
    acceptor_->GoOn();
  }
}

void Control::EndSilent() {
  const core::Tick now = ipc::Now();
  while (!silent_.empty() && silent_.front().first <= now) {
    const uint64_t key = silent_.front().second;
    silent_.pop_front();
    Connection* connection = Find(key);
    // Those kept for ravenctl are for who uses them.
    if (connection == nullptr || connection->asked) continue;
    if (connection->greeted && !connection->reserved) continue;
    if (now - connection->heard < kSilenceMax || connection->waiting > 0) {
      silent_.emplace_back(now + kSilenceMax, key);
      continue;
    }
    Fail(*connection, 0, ErrorCode::kTimedOut, "a connection that says nothing is closed");
    HangUp(*connection);
  }
}

void Control::ReadPaced() {
  const core::Tick now = ipc::Now();
  while (!paced_.empty() && paced_.begin()->first <= now) {
    const uint64_t key = paced_.begin()->second;
    paced_.erase(paced_.begin());
    Connection* connection = Find(key);
    if (connection == nullptr) continue;
    connection->waiting -= kQuestion;
    UpdateInterest(*connection);
  }
}

void Control::Stop() {
  mailbox_.Post([this] { stopping_.store(true, std::memory_order_release); });
}

void Control::StopAccepting() {
  mailbox_.Post([this] { acceptor_->Stop(); });
}

core::Status Control::MayConnect(uid_t uid) const {
  if (!received_closers_.IsStuck(uid)) return core::Ok();
  return Error{ErrorCode::kLimit, "user " + std::to_string(uid) +
                                      " has sent the daemon a descriptor whose close does not "
                                      "end: until it does, none of its connections is taken"};
}

core::Status Control::Admit(ipc::UniqueFd& socket, ipc::Peer& peer, bool reserved) {
  auto connection = std::make_unique<Connection>();
  connection->key = next_key_++;
  connection->socket = std::move(socket);
  connection->peer = std::move(peer);
  connection->reserved = reserved;
  connection->heard = ipc::Now();
  if (!UpdateInterest(*connection) ||
      !Watch(connection->peer.pidfd.get(), connection->key | kPidBit, EPOLLIN)) {
    socket = std::move(connection->socket);
    return Error{ErrorCode::kLimit,
                 "the system watches no more descriptors for the daemon's user: raise "
                 "fs.epoll.max_user_watches"};
  }
  silent_.emplace_back(connection->heard + kSilenceMax, connection->key);
  connections_.emplace(connection->key, std::move(connection));
  return core::Ok();
}

bool Control::MayRead(Connection& connection) {
  if (!ipc::BringsDescriptors(connection.socket.get())) return true;
  // Only a legacy job's first message brings one. What is not received costs nothing to close.
  const bool expected = !connection.greeted && !connection.asked;
  if (expected && !received_closers_.IsStuck(connection.peer.uid) && !received_closers_.AllStuck())
    return IsInPace(connection);
  Fail(connection, 0, expected ? ErrorCode::kLimit : ErrorCode::kInvalidArgument,
       expected ? "the daemon takes no descriptors: those that it was sent do not close"
                : "this message may bring no descriptors");
  HangUp(connection);
  return false;
}

bool Control::IsInPace(Connection& connection) {
  if (std::exchange(connection.paced, false)) return true;
  const core::Tick now = ipc::Now();
  const core::Tick at = descriptor_limit_.Next(connection.user(), now);
  if (at <= now) return true;
  connection.paced = true;
  connection.waiting += kQuestion;
  paced_.emplace(at, connection.key);
  UpdateInterest(connection);
  return false;
}

void Control::OnReadable(Connection& connection) {
  const uint64_t key = connection.key;
  while (turns_.Left(connection.user()) > 0) {
    if (!MayRead(connection)) return;
    std::vector<ipc::UniqueFd> descriptors;
    auto received = ipc::Receive(connection.socket.get(), &descriptors);
    if (!received.ok()) {
      CloseSent(key, std::move(descriptors));
      if (received.error().code == ErrorCode::kTimedOut) return;
      if (received.error().code != ErrorCode::kCorrupt) return HangUp(connection);
      turns_.Spend(connection.user(), kUnitsOfDescriptors);
      Fail(connection, 0, ErrorCode::kCorrupt, received.error().message);
      if (!connection.Reads()) return;
      continue;
    }
    if (!received->has_value()) return HangUp(connection);
    const size_t bytes = (*received)->bytes.size();
    turns_.Spend(connection.user(), static_cast<uint32_t>(1 + bytes / kBytesOfUnit) +
                                        (descriptors.empty() ? 0 : kUnitsOfDescriptors));
    connection.heard = ipc::Now();
    proto::ClientPacket message;
    if (!message.ParseFromString((*received)->bytes)) {
      CloseSent(key, std::move(descriptors));
      Fail(connection, 0, ErrorCode::kCorrupt, "a control packet could not be parsed");
      if (!connection.Reads()) return;
      continue;
    }
    Handle(connection, message, descriptors);
    CloseSent(key, std::move(descriptors));
    if (Find(key) == nullptr || connection.hung_up || !connection.Reads()) return;
  }
}

void Control::Handle(Connection& connection, const proto::ClientPacket& packet,
                     std::vector<ipc::UniqueFd>& descriptors) {
  using Body = proto::ClientPacket;
  if (connection.asked) {
    return Fail(connection, packet.request(), ErrorCode::kWrongState,
                "this message is the only one of its connection");
  }
  if (HandleLegacy(connection, packet, descriptors)) return;
  if (packet.body_case() == Body::kHello)
    return HandleHello(connection, packet.request(), packet.hello());
  if (!connection.greeted) {
    return Fail(connection, packet.request(), ErrorCode::kWrongState,
                "the first message must be Hello");
  }
  switch (packet.body_case()) {
    case Body::kInternName:
      return HandleInternName(connection, packet.request(), packet.intern_name().name());
    case Body::kSlabReleased: {
      const auto& released = packet.slab_released();
      if (released.device() >= devices_.size()) break;
      const core::DeviceId device{static_cast<uint16_t>(released.device())};
      return PostToLoop(connection, kNotice,
                        [loop = loop_, client = connection.client, device,
                         offset = core::Bytes(released.offset())] {
                          loop->SlabReleased(client, device, offset);
                        });
    }
    case Body::kTrim:
      return PostToLoop(connection, kNotice,
                        [loop = loop_, client = connection.client] { loop->Trim(client); });
    case Body::kPinnedAlloc:
      return HandlePinnedAlloc(connection, packet.request(), packet.pinned_alloc());
    case Body::kPinnedFree:
      return HandlePinnedFree(connection, packet.request(), packet.pinned_free());
    case Body::kPinnedSlabReleased: {
      const auto& released = packet.pinned_slab_released();
      const core::PinnedSlabId slab{released.pool(), core::Bytes(released.offset())};
      return PostToLoop(connection, kNotice, [loop = loop_, client = connection.client, slab] {
        loop->PinnedSlabReleased(client, slab);
      });
    }
    case Body::kRecord: return HandleRecord(connection, packet.request(), packet.record());
    case Body::kDetach: return HandleDetach(connection, packet.request());
    case Body::kSetLimits:
      return HandleSetLimits(connection, packet.request(), packet.set_limits());
    case Body::kListLegacy:
      return HandleListLegacy(connection, packet.request(), packet.list_legacy());
    case Body::kExplainJob:
      return HandleExplainJob(connection, packet.request(), packet.explain_job());
    case Body::kExplainFailure:
    case Body::kStats:
    case Body::kListTensors:
    case Body::kExplainTensor:
    case Body::kListClients: return HandleQuery(connection, packet);
    default: break;
  }
  Fail(connection, packet.request(), ErrorCode::kInvalidArgument,
       "this daemon does not know that message");
}

void Control::HandleInternName(Connection& connection, uint64_t request, const std::string& name) {
  connection.named = true;
  const auto id = names_.Intern(name, connection.user(), connection.key);
  if (!id.ok()) return Fail(connection, request, id.error().code, id.error().message);
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_name_interned()->set_id(ToInt(*id));
  Send(connection, answer);
}

void Control::HandleHello(Connection& connection, uint64_t request, const proto::Hello& hello) {
  if (connection.greeted)
    return Fail(connection, request, ErrorCode::kWrongState, "Hello was said already");
  if (hello.protocol_version() != proto::kProtocolVersion) {
    return Fail(connection, request, ErrorCode::kVersionMismatch,
                "this daemon speaks protocol " + std::to_string(proto::kProtocolVersion) +
                    ", the client " + std::to_string(hello.protocol_version()) + " (library " +
                    hello.library_version() + "): install the same version of both");
  }
  if (hello.control_only()) {
    connection.greeted = true;
    return SendWelcome(connection, request, nullptr, {});
  }
  const core::Status place = TakeClient(connection);
  if (!place.ok()) return Fail(connection, request, place.error().code, place.error().message);
  turns_.Spend(connection.user(), kUnitsOfAttach);
  const auto fail = [&](const Error& why) {
    OnGone(connection.user());
    Fail(connection, request, why.code, why.message);
  };
  auto attachment = MakeAttachment(connection, hello);
  if (!attachment.ok()) return fail(attachment.error());
  auto descriptors = DescriptorsFor(**attachment);
  if (!descriptors.ok()) return fail(descriptors.error());
  // From here on nothing fails: the loop is told of nobody who gets no Welcome.
  connection.greeted = true;
  connection.client = (*attachment)->id;
  by_client_[connection.client] = connection.key;
  if (MayLog(connection))
    spdlog::info("client {} attached: pid {}, uid {}, {}", ToInt(connection.client),
                 connection.peer.pid, connection.peer.uid, (*attachment)->name);
  // Posted before the Welcome goes out, so that the loop knows the client before its first request.
  loop_->mailbox().Post(
      [loop = loop_, attachment = *attachment, budgets = tenants_.at(connection.peer.uid)] {
        loop->SetTenant(attachment->tenant, budgets);
        loop->Attach(attachment);
      });
  SendWelcome(connection, request, attachment->get(), std::move(*descriptors));
}

core::Status Control::TakeClient(const Connection& connection) {
  if (connection.reserved) {
    return Error{ErrorCode::kLimit,
                 "all connections of this user are taken; the last are kept for ravenctl"};
  }
  RAVEN_RETURN_IF_ERROR(clients_.Take(connection.user()));
  core::Status descriptors = descriptors_.Take(connection.user(), kDescriptorsOfClient);
  if (!descriptors.ok()) clients_.Give(connection.user());
  return descriptors;
}

void Control::OnGone(core::TenantId user) {
  clients_.Give(user);
  descriptors_.Give(user, kDescriptorsOfClient);
}

core::Result<std::shared_ptr<Attachment>> Control::MakeAttachment(Connection& connection,
                                                                  const proto::Hello& hello) {
  const uint32_t id = next_client_;
  RAVEN_ASSIGN_OR_RETURN(auto segment, ipc::ControlSegment::Create(id));
  RAVEN_ASSIGN_OR_RETURN(auto doorbell, ipc::Doorbell::Create());
  const core::TenantId tenant = TenantOf(connection.peer.uid);
  const core::Budgets& granted = tenants_.at(connection.peer.uid);
  auto least = [](uint64_t asked, core::Bytes most) {
    return asked == 0 ? most : std::min(core::Bytes(asked), most);
  };
  auto attachment = std::make_shared<Attachment>(Attachment{
      ClientId{id},
      tenant,
      {least(hello.device_budget(), granted.device), least(hello.host_budget(), granted.host)},
      connection.peer.pid,
      connection.peer.uid,
      ForPeople(hello.name()),
      std::move(segment),
      std::move(doorbell),
      {}});
  attachment->arenas.resize(devices_.size());
  ++next_client_;
  return attachment;
}

void Control::SendWelcome(Connection& connection, uint64_t request, const Attachment* attachment,
                          std::vector<ipc::UniqueFd> descriptors) {
  proto::DaemonPacket packet;
  packet.set_request(request);
  proto::Welcome* welcome = packet.mutable_welcome();
  welcome->set_protocol_version(proto::kProtocolVersion);
  welcome->set_backend(options_.backend);
  welcome->set_restart_timeout_ms(options_.restart_timeout_ms);
  welcome->set_daemon_version(proto::kVersion);
  for (size_t i = 0; i < devices_.size(); ++i) {
    proto::Device* device = welcome->add_devices();
    device->set_uuid(devices_[i]->info().uuid);
    device->set_name(devices_[i]->info().name);
    device->set_total_bytes(devices_[i]->info().total.count());
    device->set_arena_bytes(options_.arenas[i].count());
  }
  if (attachment != nullptr) {
    welcome->set_client(ToInt(attachment->id));
    welcome->set_device_budget(attachment->budgets.device.count());
    welcome->set_host_budget(attachment->budgets.host.count());
  }
  Send(connection, packet, std::move(descriptors));
}

void Control::HandleDetach(Connection& connection, uint64_t request) {
  if (connection.client == ClientId{}) {
    return Fail(connection, request, ErrorCode::kWrongState,
                "this connection has no client to detach");
  }
  const uint64_t key = connection.key;
  if (MayLog(connection)) spdlog::info("client {} detached", ToInt(connection.client));
  loop_->mailbox().Post([this, client = connection.client, key, request, user = connection.user()] {
    loop_->Detach(client, [this, key, request, user] {
      mailbox_.Post([this, user] { OnGone(user); });
      proto::DaemonPacket answer;
      answer.set_request(request);
      answer.mutable_detached();
      PostAnswer(key, std::move(answer));
    });
  });
  by_client_.erase(connection.client);
  connection.client = ClientId{};
}

void Control::HandleSetLimits(Connection& connection, uint64_t request,
                              const proto::SetLimits& limits) {
  const bool admin = IsAdmin(connection.peer.uid);
  if (limits.has_paused() && (admin || legacy_.IsOf(limits.client(), connection.peer.uid)))
    return HandlePause(connection, request, limits);
  if (!admin) {
    return Fail(connection, request, ErrorCode::kPermission,
                "only root and the daemon's own user may change limits");
  }
  if (limits.client() != 0 && limits.has_device_guarantee()) {
    return Fail(connection, request, ErrorCode::kInvalidArgument,
                "a guarantee is a user's, for all clients of that user together");
  }
  if (HandleVisibleMemory(connection, request, limits)) return;
  // By value: the loop merges after the message is gone.
  auto merge = [device = limits.device_budget(), host = limits.host_budget(),
                guarantee = limits.has_device_guarantee()
                                ? std::optional(limits.device_guarantee())
                                : std::nullopt](core::Budgets budgets, const core::Budgets& unset) {
    const auto set = [](uint64_t limit, core::Bytes* budget, core::Bytes before) {
      if (limit != 0) *budget = limit == proto::kLimitNotSet ? before : core::Bytes(limit);
    };
    set(device, &budgets.device, unset.device);
    set(host, &budgets.host, unset.host);
    if (guarantee == proto::kLimitNotSet) {
      budgets.device_guarantee = unset.device_guarantee;
    } else if (guarantee) {
      budgets.device_guarantee = core::Bytes(*guarantee);
    }
    return budgets;
  };
  const uint64_t visible = limits.client() == 0 ? legacy_.VisibleOfTenant(limits.uid()).count() : 0;
  auto answer = [visible, by_default = options_.guaranteed_by_default](uint64_t id,
                                                                       core::Budgets budgets) {
    proto::DaemonPacket packet;
    packet.mutable_limits_set()->set_visible_memory(visible);
    packet.set_request(id);
    packet.mutable_limits_set()->set_device_budget(budgets.device.count());
    packet.mutable_limits_set()->set_host_budget(budgets.host.count());
    packet.mutable_limits_set()->set_device_guarantee(
        budgets.device_guarantee.value_or(by_default).count());
    return packet;
  };
  if (limits.client() == 0) {
    const core::TenantId tenant = TenantOf(limits.uid());
    core::Budgets& budgets = tenants_.at(limits.uid());
    budgets = merge(budgets, options_.tenant_budgets);
    PostToLoop(connection, kNotice,
               [loop = loop_, tenant, budgets] { loop->SetTenant(tenant, budgets); });
    return Send(connection, answer(request, budgets));
  }
  PostToLoop(
      connection, kQuestion,
      [this, client = ClientId{limits.client()}, merge, answer, request, key = connection.key] {
        Session* session = loop_->FindSession(client);
        if (session == nullptr || session->gone) {
          proto::DaemonPacket failure;
          failure.set_request(request);
          failure.mutable_failure()->set_code(static_cast<uint32_t>(ErrorCode::kNotFound));
          failure.mutable_failure()->set_message("no client " + std::to_string(ToInt(client)) +
                                                 " is attached");
          return PostAnswer(key, std::move(failure));
        }
        const core::Budgets budgets =
            merge(loop_->planner().View(client).budgets, session->attachment().budgets);
        loop_->SetClientBudgets(client, budgets);
        PostAnswer(key, answer(request, budgets));
      });
}

core::TenantId Control::TenantOf(uid_t uid) {
  tenants_.try_emplace(uid, options_.tenant_budgets);
  return core::TenantId{uid};
}

void Control::OnDeath(Connection& connection) {
  waits_.Ended({connection.peer.pid, connection.peer.start_time});
  if (connection.client != ClientId{}) {
    if (MayLog(connection))
      spdlog::info("client {} died: pid {}", ToInt(connection.client), connection.peer.pid);
    loop_->mailbox().Post([this, client = connection.client, user = connection.user()] {
      loop_->Detach(client, [this, user] { mailbox_.Post([this, user] { OnGone(user); }); });
    });
    by_client_.erase(connection.client);
  }
  Forget(connection.key);
}

void Control::HangUp(Connection& connection) {
  const bool legacy = legacy_.HangUp(connection.key);
  if (connection.client == ClientId{} && !legacy) return Forget(connection.key);
  EndRecording(connection);
  if (MayLog(connection))
    spdlog::info("{} hung up; its memory stays until its process {} ends",
                 legacy ? "a legacy job" : "client " + std::to_string(ToInt(connection.client)),
                 connection.peer.pid);
  ending_->Close(std::move(connection.socket), connection.peer.uid);
  connection.queue.clear();
  connection.answers = 0;
  connection.answer_bytes = 0;
  SettleDescriptors(connection);
  connection.hung_up = true;
}

void Control::CloseSent(uint64_t key, std::vector<ipc::UniqueFd> descriptors) {
  std::erase_if(descriptors, [](const ipc::UniqueFd& descriptor) { return !descriptor; });
  if (descriptors.empty()) return;
  Connection* connection = Find(key);
  if (connection != nullptr) connection->waiting += kQuestion;
  const uid_t uid = connection == nullptr ? Acceptor::kUnknownUid : connection->peer.uid;
  received_closers_.Close(uid, std::move(descriptors), [this, key] {
    mailbox_.Post([this, key] {
      acceptor_->OnClosed();
      Connection* connection = Find(key);
      if (connection == nullptr) return;
      connection->waiting -= kQuestion;
      UpdateInterest(*connection);
    });
  });
  if (connection != nullptr) UpdateInterest(*connection);
}

void Control::Forget(uint64_t key) {
  const auto found = connections_.find(key);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  EndRecording(connection);
  connection.queue.clear();
  ending_->Close(std::move(connection.socket), connection.peer.uid,
                 [this, user = connection.user(), reserved = connection.reserved] {
                   acceptor_->GivePlace(user, reserved);
                 });
  SettleDescriptors(connection);
  if (connection.legacy) GiveLegacyPlace(connection);
  legacy_.Remove(key);
  reclaims_.Forget(key);
  waits_.Leave(key);
  // There may be many.
  if (connection.named) workers_->Run(connection.user(), [this, key] { names_.Release(key); });
  connections_.erase(found);
  acceptor_->OnClosed();
}

core::Status Control::ChargeDescriptors(Connection& connection, size_t descriptors) {
  SettleDescriptors(connection);
  RAVEN_RETURN_IF_ERROR(descriptors_.Take(connection.user(), descriptors));
  connection.descriptors += descriptors;
  return core::Ok();
}

void Control::SettleDescriptors(Connection& connection) {
  size_t waiting = 0;
  for (const Outgoing& next : connection.queue) waiting += next.descriptors.size();
  if (connection.socket && !ipc::IsDrained(connection.socket.get())) return;
  descriptors_.Give(connection.user(), connection.descriptors - waiting);
  connection.descriptors = waiting;
}

void Control::Send(Connection& connection, const proto::DaemonPacket& packet,
                   std::vector<ipc::UniqueFd> descriptors) {
  if (connection.hung_up) return;
  core::Status room = core::Ok();
  if (connection.queue.size() >= kQueueMax)
    room = Error{ErrorCode::kLimit, std::to_string(kQueueMax) + " messages lie unread"};
  if (room.ok() && !descriptors.empty()) room = ChargeDescriptors(connection, descriptors.size());
  if (!room.ok()) {
    if (MayLog(connection))
      spdlog::warn("client {} does not read its socket; a message is dropped: {}",
                   ToInt(connection.client), room.error().message);
    return;
  }
  const bool unasked = packet.has_slab_ready() || packet.has_release_slab() ||
                       packet.has_pinned_slab() || packet.has_release_pinned_slab();
  connection.queue.push_back({Encode(packet), std::move(descriptors), unasked});
  if (!unasked) {
    ++connection.answers;
    connection.answer_bytes += connection.queue.back().bytes.size();
  }
  if (connection.queue.size() == 1) OnWritable(connection);
  UpdateInterest(connection);
}

void Control::OnWritable(Connection& connection) {
  while (!connection.queue.empty()) {
    const Outgoing& next = connection.queue.front();
    std::vector<int> descriptors;
    for (const auto& descriptor : next.descriptors) descriptors.push_back(descriptor.get());
    const core::Status sent = ipc::Send(connection.socket.get(), next.bytes, descriptors);
    if (!sent.ok() && sent.error().code == ErrorCode::kTimedOut) break;
    if (!sent.ok() && sent.error().code != ErrorCode::kUnavailable) {
      if (MayLog(connection))
        spdlog::warn("a message was not sent: {}", core::Describe(sent.error()));
    }
    if (!next.unasked) {
      --connection.answers;
      connection.answer_bytes -= next.bytes.size();
    }
    connection.queue.pop_front();
  }
  UpdateInterest(connection);
}

void Control::Fail(Connection& connection, uint64_t request, ErrorCode code, std::string message) {
  Send(connection, FailureOf(request, {code, std::move(message)}));
}

Control::Connection* Control::Find(uint64_t key) {
  const auto found = connections_.find(key);
  return found == connections_.end() ? nullptr : found->second.get();
}

Control::Connection* Control::FindClient(ClientId client) {
  const auto found = by_client_.find(client);
  return found == by_client_.end() ? nullptr : Find(found->second);
}

void Control::PostToLoop(Connection& connection, uint32_t share, std::function<void()> work) {
  connection.waiting += share;
  users_[connection.user()].posts.push_back({connection.key, share, std::move(work)});
  PostMore(connection.user());
  UpdateInterest(connection);
}

void Control::PostMore(core::TenantId user) {
  const auto found = users_.find(user);
  if (found == users_.end()) return;
  User& of_user = found->second;
  while (!of_user.posts.empty() && of_user.with_loop < kWithLoopMax) {
    Post post = std::move(of_user.posts.front());
    of_user.posts.pop_front();
    // Nobody waits for the answer any more.
    const Connection* connection = Find(post.key);
    if (connection == nullptr || (connection->hung_up && post.share == kQuestion)) continue;
    of_user.with_loop += post.share;
    loop_->mailbox().Post(
        [this, user, share = post.share, key = post.key, work = std::move(post.work)] {
          work();
          // Behind the answer, if there is one.
          mailbox_.Post([this, user, key, share] { OnPosted(user, key, share); });
        });
  }
  if (of_user.posts.empty() && of_user.with_loop == 0) users_.erase(found);
}

void Control::OnPosted(core::TenantId user, uint64_t key, uint32_t share) {
  users_.at(user).with_loop -= share;
  PostMore(user);
  Connection* connection = Find(key);
  if (connection == nullptr) return;
  connection->waiting -= share;
  UpdateInterest(*connection);
}

void Control::PostAnswer(uint64_t key, proto::DaemonPacket packet) {
  mailbox_.Post([this, key, packet = std::move(packet)] {
    if (Connection* connection = Find(key)) Send(*connection, packet);
  });
}

void Control::PostDefaults(core::Budgets budgets, uint64_t restart_timeout_ms) {
  mailbox_.Post([this, budgets, restart_timeout_ms] {
    const core::Budgets before = std::exchange(options_.tenant_budgets, budgets);
    options_.restart_timeout_ms = restart_timeout_ms;
    const auto adopt = [](auto* own, const auto& was, const auto& now) {
      if (*own == was) *own = now;
    };
    for (auto& [uid, own] : tenants_) {
      adopt(&own.device, before.device, budgets.device);
      adopt(&own.host, before.host, budgets.host);
      adopt(&own.device_guarantee, before.device_guarantee, budgets.device_guarantee);
      loop_->mailbox().Post([loop = loop_, tenant = core::TenantId{uid}, own = own] {
        loop->SetTenant(tenant, own);
      });
    }
  });
}

void Control::PostSlabReady(std::shared_ptr<SlabForClient> slab) {
  mailbox_.Post([this, slab = std::move(slab)] {
    Connection* connection = FindClient(slab->client);
    if (connection == nullptr) return;
    proto::DaemonPacket packet;
    proto::SlabReady* ready = packet.mutable_slab_ready();
    ready->set_device(ToInt(slab->device));
    ready->set_offset(slab->offset.count());
    ready->set_bytes(slab->bytes.count());
    std::vector<ipc::UniqueFd> descriptors;
    descriptors.push_back(std::move(slab->descriptor));
    Send(*connection, packet, std::move(descriptors));
  });
}

void Control::PostReleaseSlab(ClientId client, core::DeviceId device, core::Bytes offset) {
  mailbox_.Post([this, client, device, offset] {
    Connection* connection = FindClient(client);
    if (connection == nullptr) return;
    proto::DaemonPacket packet;
    packet.mutable_release_slab()->set_device(ToInt(device));
    packet.mutable_release_slab()->set_offset(offset.count());
    Send(*connection, packet);
  });
}

void Control::PostExpel(ClientId client, std::string why) {
  mailbox_.Post([this, client, why = std::move(why)] {
    Connection* connection = FindClient(client);
    if (connection == nullptr) return;
    Fail(*connection, 0, ErrorCode::kCorrupt, why);
    HangUp(*connection);
  });
}

}  // namespace ravenstore::daemon
