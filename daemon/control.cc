#include "daemon/control.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "core/check.h"
#include "daemon/admin.h"
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
constexpr uint64_t kYieldTimerKey = ~uint64_t{0} - 1;
// A pidfd's key is its connection's with this bit.
constexpr uint64_t kPidBit = uint64_t{1} << 63;
constexpr int kEpollEvents = 64;
constexpr int kPacketsPerTurn = 64;
// A client that lets so much pile up has stopped reading for good; what it misses are slabs it will
// ask for in vain, until it is killed or goes on.
constexpr size_t kQueueMax = 4096;
// Tools of one user, and clients that did not say Hello yet.
constexpr size_t kToolsMax = 64;
constexpr uid_t kNobody = ~uid_t{0};
// Descriptors also come free where no connection ends: with slabs.
constexpr std::chrono::milliseconds kRest(100);

proto::DaemonPacket FailureOf(uint64_t request, const Error& error) {
  proto::DaemonPacket packet;
  packet.set_request(request);
  packet.mutable_failure()->set_code(static_cast<uint32_t>(error.code));
  packet.mutable_failure()->set_message(error.message);
  return packet;
}

// The last word to somebody who is not served. Whoever does not get it sees the hang-up.
void TurnAway(int socket, const Error& why) {
  [[maybe_unused]] const core::Status sent =
      ipc::Send(socket, FailureOf(0, why).SerializeAsString());
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

std::string ForPeople(const std::string& name) {
  std::string text = name.substr(0, Names::kNameBytesMax);
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

std::string Encode(const proto::DaemonPacket& packet) {
  std::string bytes = packet.SerializeAsString();
  if (bytes.size() <= proto::kControlPacketMax) return bytes;
  return FailureOf(packet.request(),
                   {ErrorCode::kLimit, "the daemon's answer has " + std::to_string(bytes.size()) +
                                           " bytes, more than a packet may"})
      .SerializeAsString();
}

Control::Control(ControlOptions options, device::Devices devices, Loop* loop, WorkerPool* workers)
    : options_(std::move(options)),
      devices_(std::move(devices)),
      loop_(loop),
      workers_(workers),
      started_(ipc::Now()),
      legacy_(options_.visible_memory),
      yields_(options_.capacities) {}

Control::~Control() {
  for (auto& [key, connection] : connections_)
    CloseSocket(std::move(connection->socket), connection->peer.uid);
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
  RAVEN_ASSIGN_OR_RETURN(
      listener_, ipc::Listen(options_.socket_path, options_.socket_mode, options_.socket_group));
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return Error{ErrorCode::kSystem, "epoll_create1 failed"};
  Watch(listener_.get(), kListenerKey, EPOLLIN);
  Watch(mailbox_.descriptor(), kMailboxKey, EPOLLIN);
  yield_timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!yield_timer_) return Error{ErrorCode::kSystem, "timerfd_create failed"};
  Watch(yield_timer_.get(), kYieldTimerKey, EPOLLIN);
  return core::Ok();
}

void Control::Watch(int descriptor, uint64_t key, uint32_t events, bool change) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  RAVEN_CHECK(
      ::epoll_ctl(epoll_.get(), change ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, descriptor, &event) == 0);
}

void Control::Attend(Connection& connection) {
  if (connection.hung_up) return;
  uint32_t events = 0;
  if (connection.Reads()) events |= EPOLLIN;
  if (!connection.queue.empty()) events |= EPOLLOUT;
  // A hang-up is told even so: once, and again when the connection is read.
  if (events == 0) events = EPOLLET;
  if (events == connection.watched) return;
  Watch(connection.socket.get(), connection.key, events, connection.watched != 0);
  connection.watched = events;
}

void Control::Run() {
  std::array<epoll_event, kEpollEvents> events;
  while (!stopping_.load(std::memory_order_acquire)) {
    const int patience_ms = rests_until_ ? static_cast<int>(kRest.count()) : -1;
    const int n = ::epoll_wait(epoll_.get(), events.data(), kEpollEvents, patience_ms);
    for (int i = 0; i < n; ++i) {
      const uint64_t key = events[i].data.u64;
      if (key == kListenerKey) {
        AcceptAll();
      } else if (key == kMailboxKey) {
        mailbox_.RunSome(SIZE_MAX);
      } else if (key == kYieldTimerKey) {
        LookAtYields();
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
    if (rests_until_ && (closed_one_ || ipc::Now() >= *rests_until_)) EndRest();
  }
}

void Control::Stop() {
  mailbox_.Post([this] { stopping_.store(true, std::memory_order_release); });
}

void Control::StopAccepting() {
  mailbox_.Post([this] {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
    listener_.reset();
    CloseSocket(std::move(accepted_), kNobody);
    ::unlink(options_.socket_path.c_str());
  });
}

void Control::AcceptAll() {
  while (listener_) {
    if (!accepted_) {
      auto socket = ipc::Accept(listener_.get());
      if (!socket.ok()) {
        if (socket.error().code != ErrorCode::kTimedOut) Rest(socket.error());
        return;
      }
      accepted_ = std::move(socket).value();
    }
    auto peer = ipc::PeerOf(accepted_.get());
    if (!peer.ok() && peer.error().code == ErrorCode::kLimit) return Rest(peer.error());
    ipc::UniqueFd socket = std::move(accepted_);
    if (!peer.ok()) {
      spdlog::warn("a connection was turned away: {}", core::Describe(peer.error()));
      TurnAway(socket.get(), peer.error());
      CloseSocket(std::move(socket), kNobody);
      continue;
    }
    if (const core::Status room = RoomFor(peer->uid); !room.ok()) {
      TurnAway(socket.get(), room.error());
      CloseSocket(std::move(socket), peer->uid);
      continue;
    }
    rest_was_told_ = false;
    auto connection = std::make_unique<Connection>();
    connection->key = next_key_++;
    connection->socket = std::move(socket);
    connection->peer = std::move(peer).value();
    Attend(*connection);
    Watch(connection->peer.pidfd.get(), connection->key | kPidBit, EPOLLIN);
    connections_.emplace(connection->key, std::move(connection));
  }
}

core::Status Control::RoomFor(uid_t uid) const {
  // A job may be a client and a legacy job at once.
  const size_t of_a_user = size_t{2} * options_.clients_max + kToolsMax;
  auto of_this = static_cast<size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [uid](const auto& entry) { return entry.second->peer.uid == uid; }));
  if (const auto closer = closers_.find(uid); closer != closers_.end())
    of_this += closer->second.open();
  if (of_this >= of_a_user) {
    return Error{ErrorCode::kLimit, "user " + std::to_string(uid) + " has " +
                                        std::to_string(of_this) +
                                        " connections to the daemon, as many as one user may "
                                        "(twice clients_max of its configuration, and 64)"};
  }
  if (connections_.size() >= 2 * of_a_user) {
    return Error{ErrorCode::kLimit, "the daemon has " + std::to_string(connections_.size()) +
                                        " connections, as many as it may (four times clients_max "
                                        "of its configuration, and 128)"};
  }
  return core::Ok();
}

void Control::Rest(const Error& why) {
  if (!rest_was_told_) {
    spdlog::warn("no more connections are accepted for now: {}", core::Describe(why));
  }
  rest_was_told_ = true;
  closed_one_ = false;
  rests_until_ = ipc::Now() + kRest;
  // It stays readable: looking for that would keep this thread busy.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
}

void Control::EndRest() {
  rests_until_.reset();
  if (!listener_) return;
  Watch(listener_.get(), kListenerKey, EPOLLIN);
  AcceptAll();
}

void Control::OnReadable(Connection& connection) {
  const uint64_t key = connection.key;
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    std::vector<ipc::UniqueFd> descriptors;
    auto received = ipc::Receive(connection.socket.get(), &descriptors);
    if (!received.ok()) {
      CloseSent(key, std::move(descriptors));
      if (received.error().code == ErrorCode::kTimedOut) return;
      if (received.error().code != ErrorCode::kCorrupt) return HangUp(connection);
      Fail(connection, 0, ErrorCode::kCorrupt, received.error().message);
      if (!connection.Reads()) return;
      continue;
    }
    if (!received->has_value()) return HangUp(connection);
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
  if (connection.yields) {
    return Fail(connection, packet.request(), ErrorCode::kWrongState,
                "LegacyYield is the only message of its connection");
  }
  if (packet.body_case() == Body::kLegacyHello) {
    return HandleLegacyHello(connection, packet.request(), packet.legacy_hello(), descriptors);
  }
  if (packet.body_case() == Body::kLegacyYield) {
    return HandleLegacyYield(connection, packet.request(), packet.legacy_yield());
  }
  if (packet.body_case() == Body::kHello)
    return HandleHello(connection, packet.request(), packet.hello());
  if (!connection.greeted) {
    return Fail(connection, packet.request(), ErrorCode::kWrongState,
                "the first message must be Hello");
  }
  switch (packet.body_case()) {
    case Body::kInternName: {
      const auto id =
          names_.Intern(packet.intern_name().name(), core::TenantId{connection.peer.uid});
      if (!id.ok()) {
        return Fail(connection, packet.request(), id.error().code, id.error().message);
      }
      proto::DaemonPacket answer;
      answer.set_request(packet.request());
      answer.mutable_name_interned()->set_id(ToInt(*id));
      return Send(connection, answer);
    }
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
    case Body::kRecord: return HandleRecord(connection, packet.request(), packet.record());
    case Body::kDetach: return HandleDetach(connection, packet.request());
    case Body::kSetLimits:
      return HandleSetLimits(connection, packet.request(), packet.set_limits());
    case Body::kListLegacy: {
      proto::DaemonPacket answer;
      answer.set_request(packet.request());
      const Audience audience = IsAdmin(connection) ? Audience() : Audience(connection.peer.uid);
      legacy_.Fill(audience, packet.list_legacy(), answer.mutable_legacy_jobs());
      return Send(connection, answer);
    }
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
  auto attachment = MakeAttachment(connection, hello);
  if (!attachment.ok()) {
    return Fail(connection, request, attachment.error().code, attachment.error().message);
  }
  auto descriptors = DescriptorsFor(**attachment);
  if (!descriptors.ok()) {
    return Fail(connection, request, descriptors.error().code, descriptors.error().message);
  }
  // From here on nothing fails: the loop is told of nobody who gets no Welcome.
  connection.greeted = true;
  connection.client = (*attachment)->id;
  by_client_[connection.client] = connection.key;
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

core::Result<std::shared_ptr<Attachment>> Control::MakeAttachment(Connection& connection,
                                                                  const proto::Hello& hello) {
  if (by_client_.size() >= options_.clients_max) {
    return Error{ErrorCode::kLimit, "the daemon serves at most " +
                                        std::to_string(options_.clients_max) +
                                        " clients (clients_max in its configuration)"};
  }
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
  spdlog::info("client {} detached", ToInt(connection.client));
  loop_->mailbox().Post([this, client = connection.client, key, request] {
    loop_->Detach(client, [this, key, request] {
      proto::DaemonPacket answer;
      answer.set_request(request);
      answer.mutable_detached();
      PostAnswer(key, std::move(answer));
    });
  });
  by_client_.erase(connection.client);
  connection.client = ClientId{};
}

bool Control::IsAdmin(const Connection& connection) const {
  return connection.peer.uid == 0 || connection.peer.uid == ::geteuid();
}

void Control::HandleSetLimits(Connection& connection, uint64_t request,
                              const proto::SetLimits& limits) {
  if (!IsAdmin(connection)) {
    return Fail(connection, request, ErrorCode::kPermission,
                "only root and the daemon's own user may change limits");
  }
  if (limits.client() != 0 && limits.has_device_guarantee()) {
    return Fail(connection, request, ErrorCode::kInvalidArgument,
                "a guarantee is a user's, for all of his clients together");
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
  if (connection.client != ClientId{}) {
    spdlog::info("client {} died: pid {}", ToInt(connection.client), connection.peer.pid);
    loop_->mailbox().Post(
        [loop = loop_, client = connection.client] { loop->Detach(client, nullptr); });
    by_client_.erase(connection.client);
  }
  Forget(connection.key);
}

void Control::HangUp(Connection& connection) {
  const bool legacy = legacy_.HangUp(connection.key);
  if (connection.client == ClientId{} && !legacy) return Forget(connection.key);
  EndRecording(connection);
  spdlog::info("{} hung up; its memory stays until its process {} ends",
               legacy ? "a legacy job" : "client " + std::to_string(ToInt(connection.client)),
               connection.peer.pid);
  CloseSocket(std::move(connection.socket), connection.peer.uid);
  connection.queue.clear();
  connection.answers = 0;
  connection.hung_up = true;
}

void Control::CloseSent(uint64_t key, std::vector<ipc::UniqueFd> descriptors) {
  std::erase_if(descriptors, [](const ipc::UniqueFd& descriptor) { return !descriptor; });
  if (descriptors.empty()) return;
  Connection* connection = Find(key);
  if (connection != nullptr) connection->waiting += kQuestion;
  const uid_t uid = connection == nullptr ? kNobody : connection->peer.uid;
  closers_[uid].Close(std::move(descriptors), [this, key] {
    mailbox_.Post([this, key] {
      closed_one_ = true;
      Connection* connection = Find(key);
      if (connection == nullptr) return;
      connection->waiting -= kQuestion;
      Attend(*connection);
    });
  });
  if (connection != nullptr) Attend(*connection);
}

void Control::CloseSocket(ipc::UniqueFd socket, uid_t uid) {
  if (!socket) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
  ::shutdown(socket.get(), SHUT_RDWR);  // the peer need not wait for the close
  std::vector<ipc::UniqueFd> sockets;
  sockets.push_back(std::move(socket));
  closers_[uid].Close(std::move(sockets),
                      [this] { mailbox_.Post([this] { closed_one_ = true; }); });
}

void Control::Forget(uint64_t key) {
  if (Connection* connection = Find(key)) {
    EndRecording(*connection);
    CloseSocket(std::move(connection->socket), connection->peer.uid);
  }
  legacy_.Remove(key);
  yields_.Forget(key);
  connections_.erase(key);
  closed_one_ = true;
}

void Control::Send(Connection& connection, const proto::DaemonPacket& packet,
                   std::vector<ipc::UniqueFd> descriptors) {
  if (connection.hung_up) return;
  if (connection.queue.size() >= kQueueMax) {
    spdlog::warn("client {} does not read its socket; a message is dropped",
                 ToInt(connection.client));
    return;
  }
  const bool unasked = packet.has_slab_ready() || packet.has_release_slab();
  connection.queue.push_back({Encode(packet), std::move(descriptors), unasked});
  if (!unasked) ++connection.answers;
  if (connection.queue.size() == 1) OnWritable(connection);
  Attend(connection);
}

void Control::OnWritable(Connection& connection) {
  while (!connection.queue.empty()) {
    const Outgoing& next = connection.queue.front();
    std::vector<int> descriptors;
    for (const auto& descriptor : next.descriptors) descriptors.push_back(descriptor.get());
    const core::Status sent = ipc::Send(connection.socket.get(), next.bytes, descriptors);
    if (!sent.ok() && sent.error().code == ErrorCode::kTimedOut) break;
    if (!sent.ok() && sent.error().code != ErrorCode::kUnavailable) {
      spdlog::warn("a message was not sent: {}", core::Describe(sent.error()));
    }
    if (!next.unasked) --connection.answers;
    connection.queue.pop_front();
  }
  Attend(connection);
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
  loop_->mailbox().Post([this, share, work = std::move(work), key = connection.key] {
    work();
    // Behind the answer, if there is one.
    mailbox_.Post([this, share, key] {
      Connection* connection = Find(key);
      if (connection == nullptr) return;
      connection->waiting -= share;
      Attend(*connection);
    });
  });
  Attend(connection);
}

void Control::PostAnswer(uint64_t key, proto::DaemonPacket packet) {
  mailbox_.Post([this, key, packet = std::move(packet)] {
    if (Connection* connection = Find(key)) Send(*connection, packet);
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
