#include "daemon/control.h"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "daemon/admin.h"
#include "daemon/packets.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::Error;
using core::ErrorCode;
using core::ToInt;

namespace {

constexpr uint64_t kListenerKey = 0;
constexpr uint64_t kMailboxKey = ~uint64_t{0};
// A pidfd's key is its connection's with this bit.
constexpr uint64_t kPidBit = uint64_t{1} << 63;
constexpr int kEpollEvents = 256;
// A turn's units of work for all users. A unit is ten microseconds of the thread's time, and a
// message is at least one. An operation of a client takes about ten turns
// of this thread, so a turn that others fill must be short.
constexpr uint32_t kUnitsPerTurn = 32;
constexpr uint32_t kUnitsLeast = 4;
constexpr uint32_t kUnitsOfDescriptors = 8;
constexpr int64_t kNsOfUnit = 10'000;
// A user may send a burst of kDescriptorBurst messages with a descriptor, then one per
// kDescriptorsEvery. A legacy job sends one when it begins; each takes four threads of the daemon
// some time.
constexpr core::Duration kDescriptorsEvery = std::chrono::milliseconds(2);
constexpr int64_t kDescriptorBurst = 256;
constexpr core::Duration kDescriptorWaitMost = std::chrono::seconds(4);
// A connection that says nothing is closed.
constexpr core::Duration kSilenceMax = std::chrono::seconds(10);
// Of the process's those that no user's doing takes.
constexpr uint64_t kDescriptorsKept = 256;
// What a daemon that is killed forgets of the history of jobs.
constexpr core::Duration kHistoryEvery = std::chrono::seconds(5);
constexpr uint64_t kReturnMostNs = 3'600'000'000'000;

// The descriptors that users' connections may take. A limit that is lowered later is met by
// errors of the system.
uint64_t DescriptorsForUsers() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kDescriptorsKept;
  return std::max<uint64_t>(limit.rlim_cur, 2 * kDescriptorsKept) - kDescriptorsKept;
}

std::vector<std::string> UuidsOf(const device::Devices& devices) {
  std::vector<std::string> uuids;
  for (const auto& device : devices) uuids.push_back(device->info().uuid);
  return uuids;
}

// CPU time of the calling thread. Other threads' work does not count, so a busy machine charges
// users no more.
int64_t ThreadNs() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

std::vector<std::optional<double>> ComputeOf(const std::vector<MemoryWatch::Seen>& seen) {
  std::vector<std::optional<double>> parts;
  for (const MemoryWatch::Seen& device : seen) parts.push_back(device.compute);
  return parts;
}

}  // namespace

Control::Control(const ControlOptions& options, device::Devices devices, Loop* loop,
                 WorkerPool* workers)
    : loop_(loop),
      workers_(workers),
      turns_(kUnitsPerTurn, kUnitsLeast),
      descriptor_limit_(kDescriptorsEvery, kDescriptorBurst, kDescriptorWaitMost),
      descriptors_("file descriptors of the daemon (LimitNOFILE of its service)",
                   DescriptorsForUsers()),
      loop_posts_(&loop->mailbox(), &mailbox_,
                  {.is_wanted =
                       [this](const LoopPosts::Post& post) {
                         // No client waits for the answer any more.
                         const Connection* connection = Find(post.key);
                         return connection != nullptr &&
                                (!connection->hung_up || post.share != kQuestion);
                       },
                   .done = [this](uint64_t key, uint32_t share) { Resume(key, share); }}),
      ledger_(options.visible_memory, UuidsOf(devices)),
      history_file_(options.history_folder),
      history_(history_file_.Load()),
      device_memory_(devices, loop, workers, &mailbox_),
      legacy_jobs_({.devices = devices,
                    .capacities = options.capacities,
                    .jobs_max = options.clients_max,
                    .slowdown_most = options.slowdown_most,
                    .settle = options.settle,
                    .compute = [watch = options.watch] { return ComputeOf(watch->seen()); },
                    .links = options.links,
                    .next_client = &next_client_,
                    .ledger = &ledger_,
                    .history = &history_,
                    .memory = &device_memory_,
                    .connections = this,
                    .descriptors = &descriptors_,
                    .turns = &turns_,
                    .log = &log_budget_}),
      limits_(options.tenant_budgets, options.guaranteed_by_default, options.other_pools, &ledger_,
              loop, this),
      clients_({.devices = devices,
                .backend = options.backend,
                .arenas = options.arenas,
                .links = options.links,
                .restart_timeout_ms = options.restart_timeout_ms,
                .clients_max = options.clients_max,
                .single_user = options.single_user,
                .next_client = &next_client_,
                .limits = &limits_,
                .loop = loop,
                .mailbox = &mailbox_,
                .connections = this,
                .descriptors = &descriptors_,
                .turns = &turns_,
                .log = &log_budget_}),
      memory_messages_(devices.size(), &clients_, loop, &mailbox_, this),
      named_sets_(options.kept_sets, &clients_, loop, &mailbox_, this),
      job_orders_(&ledger_, this),
      recordings_(loop, this,
                  [this, loop](ClientId client, core::NameId name) {
                    return NameOf(*loop, names_, client, name);
                  }),
      queries_({.devices = devices,
                .peer_pools = options.peer_pools,
                .started = ipc::Now(),
                .names = &names_,
                .ledger = &ledger_,
                .watch = options.watch,
                .cluster = options.cluster,
                .remote_pool = options.remote_pool,
                .loop = loop,
                .connections = this}) {}

Control::~Control() {
  for (auto& [key, connection] : connections_)
    ending_->Close(connection->out.Close(), connection->peer.uid);
  if (ending_) ending_->EndTurn();
}

core::Result<std::unique_ptr<Control>> Control::Create(const ControlOptions& options,
                                                       device::Devices devices, Loop* loop,
                                                       WorkerPool* workers) {
  std::unique_ptr<Control> control(new Control(options, std::move(devices), loop, workers));
  RAVEN_RETURN_IF_ERROR(control->Init(options));
  return control;
}

core::Status Control::Init(const ControlOptions& options) {
  RAVEN_ASSIGN_OR_RETURN(
      auto listener, ipc::Listen(options.socket_path, options.socket_mode, options.socket_group));
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return Error{ErrorCode::kSystem, "epoll_create1 failed"};
  ending_.emplace(epoll_.get(), &mailbox_, [this] { acceptor_->OnClosed(); });
  acceptor_.emplace(std::move(listener),
                    Acceptor::Options{
                        .epoll = epoll_.get(),
                        .key = kListenerKey,
                        .clients = options.clients_max,
                        .turns = &turns_,
                        .descriptors = &descriptors_,
                        .ending = &*ending_,
                        .may_connect = [this](uid_t uid) { return MayConnect(uid); },
                        .admit = [this](ipc::UniqueFd& socket, ipc::Peer& peer,
                                        bool reserved) { return Admit(socket, peer, reserved); },
                    });
  RAVEN_RETURN_IF_ERROR(acceptor_->Begin());
  if (!Watch(mailbox_.descriptor(), kMailboxKey, EPOLLIN))
    return Error{ErrorCode::kSystem, "epoll_ctl failed (fs.epoll.max_user_watches)"};
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
  if (!connection.out.empty()) events |= EPOLLOUT;
  // epoll still reports a hang-up: once, and again when the connection is read.
  if (events == 0) events = EPOLLET;
  if (events == connection.watched) return true;
  const bool known = connection.watched != 0;
  if (!Watch(connection.out.socket(), connection.key, events, known)) return false;
  connection.watched = events;
  return true;
}

bool Control::MayLog(const Connection& connection) {
  return log_budget_.Allow(connection.peer.uid, ipc::Now());
}

void Control::LogWhatWasLeftOut() {
  const core::Tick now = ipc::Now();
  if (now < log_budget_.NextDue()) return;
  for (const auto& [uid, lines] : log_budget_.TakeDue(now))
    spdlog::info("{} lines about user {} were left out", lines, uid);
}

int Control::NextTimer() const {
  core::Tick next = std::min({acceptor_->paused_until(), log_budget_.NextDue(), legacy_jobs_.due(),
                              named_sets_.due(), job_orders_.due()});
  if (!silent_.empty()) next = std::min(next, silent_.front().first);
  if (!paced_.empty()) next = std::min(next, paced_.begin()->first);
  if (history_file_.keeps() && history_.version() != history_given_)
    next = std::min(next, history_due_);
  if (next == core::kNever) return -1;
  const auto left = std::max(next - ipc::Now(), core::Duration(0));
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

void Control::Run() {
  std::array<epoll_event, kEpollEvents> events;
  while (!stopping_.load(std::memory_order_acquire)) {
    const int n = ::epoll_wait(epoll_.get(), events.data(), kEpollEvents, NextTimer());
    turns_.BeginTurn();
    for (int i = 0; i < n; ++i) OnEvent(events[i].data.u64, events[i].events);
    legacy_jobs_.OnTime(ipc::Now());
    named_sets_.OnTime(ipc::Now());
    job_orders_.OnTime(ipc::Now());
    EndSilent();
    ReadPaced();
    LogWhatWasLeftOut();
    KeepHistory();
    ending_->EndTurn();
    acceptor_->Resume();
  }
  history_file_.Save(history_.Serialize(), history_.version());
}

void Control::KeepHistory() {
  const core::Tick now = ipc::Now();
  if (!history_file_.keeps() || history_.version() == history_given_ || now < history_due_) return;
  history_due_ = now + kHistoryEvery;
  history_given_ = history_.version();
  workers_->Run(kNoUser, [this, text = history_.Serialize(), version = history_given_] {
    history_file_.Save(text, version);
  });
}

void Control::OnEvent(uint64_t key, uint32_t events) {
  if (key == kListenerKey) return acceptor_->AcceptSome();
  if (key == kMailboxKey) {
    mailbox_.RunSome(mailbox_.size());
    return;
  }
  Connection* connection = Find(key & ~kPidBit);
  if (connection == nullptr) return;
  if ((key & kPidBit) != 0) return OnDeath(*connection);
  if ((events & EPOLLOUT) != 0) OnWritable(*connection);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && connection->Reads())
    OnReadable(*connection);
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
    Resume(key, kQuestion);
  }
}

void Control::Resume(uint64_t key, uint32_t share) {
  Connection* connection = Find(key);
  if (connection == nullptr) return;
  connection->waiting -= share;
  UpdateInterest(*connection);
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
  const core::TenantId user{peer.uid};
  auto connection = std::make_unique<Connection>(
      Caller{.key = next_key_++, .peer = std::move(peer), .reserved = reserved},
      SendQueue(std::move(socket), user, &descriptors_));
  connection->heard = ipc::Now();
  if (!UpdateInterest(*connection) ||
      !Watch(connection->peer.pidfd.get(), connection->key | kPidBit, EPOLLIN)) {
    socket = connection->out.Close();
    return Error{ErrorCode::kLimit,
                 "the system watches no more descriptors for the daemon's user: raise "
                 "fs.epoll.max_user_watches"};
  }
  silent_.emplace_back(connection->heard + kSilenceMax, connection->key);
  connections_.emplace(connection->key, std::move(connection));
  return core::Ok();
}

bool Control::MayRead(Connection& connection) {
  if (!ipc::BringsDescriptors(connection.out.socket())) return true;
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
    auto received = ipc::Receive(connection.out.socket(), &descriptors);
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
    const core::TenantId user = connection.user();
    turns_.Spend(user, 1 + (descriptors.empty() ? 0 : kUnitsOfDescriptors));
    connection.heard = ipc::Now();
    const int64_t began = ThreadNs();
    proto::ClientPacket message;
    if (message.ParseFromString((*received)->bytes)) {
      Handle(connection, message, descriptors);
    } else {
      Fail(connection, 0, ErrorCode::kCorrupt, "a control packet could not be parsed");
    }
    turns_.Spend(user, static_cast<uint32_t>((ThreadNs() - began) / kNsOfUnit));
    CloseSent(key, std::move(descriptors));
    if (Find(key) == nullptr || connection.hung_up || !connection.Reads()) return;
  }
}

void Control::Handle(Connection& connection, const proto::ClientPacket& packet,
                     std::vector<ipc::UniqueFd>& descriptors) {
  using Body = proto::ClientPacket;
  const uint64_t request = packet.request();
  if (connection.asked) {
    return Fail(connection, request, ErrorCode::kWrongState,
                "this message is the only one of its connection");
  }
  if (legacy_jobs_.Handle(connection, packet, descriptors)) return;
  if (packet.has_hello()) return clients_.HandleHello(connection, request, packet.hello());
  if (!connection.greeted)
    return Fail(connection, request, ErrorCode::kWrongState, "the first message must be Hello");
  if (memory_messages_.Handle(connection, packet)) return;
  if (named_sets_.Handle(connection, packet)) return;
  if (job_orders_.Handle(connection, packet)) return;
  if (queries_.Handle(connection, packet)) return;
  switch (packet.body_case()) {
    case Body::kInternName:
      return HandleInternName(connection, request, packet.intern_name().name());
    case Body::kRecord: return recordings_.Handle(connection, request, packet.record());
    case Body::kDetach: return clients_.HandleDetach(connection, request);
    case Body::kReturnHarvest:
      return HandleReturnHarvest(connection, request, packet.return_harvest());
    case Body::kSetLimits: return limits_.Handle(connection, request, packet.set_limits());
    case Body::kListLegacy:
      return legacy_jobs_.HandleList(connection, request, packet.list_legacy());
    case Body::kExplainJob:
      return legacy_jobs_.HandleExplain(connection, request, packet.explain_job());
    case Body::kJobQuery: return legacy_jobs_.HandleQuery(connection, request, packet.job_query());
    case Body::kListJobRecords:
      return legacy_jobs_.HandleRecords(connection, request, packet.list_job_records());
    default: break;
  }
  Fail(connection, request, ErrorCode::kInvalidArgument, "this daemon does not know that message");
}

void Control::HandleReturnHarvest(const Connection& connection, uint64_t request,
                                  const proto::ReturnHarvest& wanted) {
  if (!connection.IsAdmin()) {
    return Fail(connection, request, ErrorCode::kPermission,
                "only root and the daemon's own user may have memory given back");
  }
  if (wanted.bytes() == 0 || wanted.within_ns() == 0 || wanted.within_ns() > kReturnMostNs) {
    return Fail(connection, request, ErrorCode::kInvalidArgument,
                "a give-back is of some bytes, within some time of an hour at most");
  }
  PostToLoop(connection.key, kQuestion, [this, request, wanted, key = connection.key] {
    const auto answer = [this, request, key](const Harvest::Returned& returned) {
      proto::DaemonPacket packet;
      packet.set_request(request);
      proto::HarvestReturned& report = *packet.mutable_harvest_returned();
      report.set_bytes(returned.bytes.count());
      report.set_took_ns(static_cast<uint64_t>(returned.took.count()));
      report.set_late(returned.late);
      PostAnswer(key, std::move(packet));
    };
    const core::DeviceId device{static_cast<uint16_t>(std::min(wanted.device(), 0xffffu))};
    const core::Status begun =
        loop_->ReturnHarvest(device, core::Bytes(wanted.bytes()),
                             core::Duration(static_cast<int64_t>(wanted.within_ns())), answer);
    if (!begun.ok()) PostAnswer(key, FailureOf(request, begun.error()));
  });
}

void Control::HandleInternName(Connection& connection, uint64_t request, const std::string& name) {
  connection.named = true;
  const auto id = names_.Intern(name, connection.user(), connection.key);
  if (!id.ok()) return Fail(connection, request, id.error().code, id.error().message);
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_name_interned()->set_id(ToInt(*id));
  Send(connection.key, answer, {});
}

void Control::OnDeath(Connection& connection) {
  legacy_jobs_.Ended(connection.peer);
  clients_.Died(connection);
  Forget(connection.key);
}

void Control::HangUp(Connection& connection) {
  const bool legacy = legacy_jobs_.HangUp(connection.key);
  if (connection.client == ClientId{} && !legacy) return Forget(connection.key);
  recordings_.Forget(connection.key);
  job_orders_.Forget(connection.key);
  if (MayLog(connection))
    spdlog::info("{} hung up; its memory stays until its process {} ends",
                 legacy ? "a legacy job" : "client " + std::to_string(ToInt(connection.client)),
                 connection.peer.pid);
  ending_->Close(connection.out.Close(), connection.peer.uid);
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
      Resume(key, kQuestion);
    });
  });
  if (connection != nullptr) UpdateInterest(*connection);
}

void Control::Forget(uint64_t key) {
  const auto found = connections_.find(key);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  recordings_.Forget(key);
  named_sets_.Forget(key);
  job_orders_.Forget(key);
  ending_->Close(connection.out.Close(), connection.peer.uid,
                 [this, user = connection.user(), reserved = connection.reserved] {
                   acceptor_->GivePlace(user, reserved);
                 });
  legacy_jobs_.Forget(key);
  // There may be many.
  if (connection.named) workers_->Run(connection.user(), [this, key] { names_.Release(key); });
  connections_.erase(found);
  acceptor_->OnClosed();
}

void Control::Send(uint64_t key, const proto::DaemonPacket& packet,
                   std::vector<ipc::UniqueFd> descriptors) {
  Connection* connection = Find(key);
  if (connection == nullptr || connection->hung_up) return;
  const core::Status pushed = connection->out.Push(packet, std::move(descriptors));
  if (!pushed.ok()) {
    if (MayLog(*connection))
      spdlog::warn("client {} does not read its socket; a message is dropped: {}",
                   ToInt(connection->client), pushed.error().message);
    return;
  }
  if (connection->out.size() == 1) OnWritable(*connection);
  UpdateInterest(*connection);
}

void Control::OnWritable(Connection& connection) {
  connection.out.Flush([&](const Error& why) {
    if (MayLog(connection)) spdlog::warn("a message was not sent: {}", core::Describe(why));
  });
  UpdateInterest(connection);
}

void Control::Fail(const Connection& connection, uint64_t request, ErrorCode code,
                   std::string message) {
  Send(connection.key, FailureOf(request, {code, std::move(message)}), {});
}

Control::Connection* Control::Find(uint64_t key) const {
  const auto found = connections_.find(key);
  return found == connections_.end() ? nullptr : found->second.get();
}

bool Control::HasUnsent(uint64_t key) const {
  const Connection* connection = Find(key);
  return connection != nullptr && !connection->out.empty();
}

void Control::PostToLoop(uint64_t key, uint32_t share, std::function<void()> work) {
  Connection& connection = *connections_.at(key);
  connection.waiting += share;
  loop_posts_.Add(connection.user(), {key, share, std::move(work)});
  UpdateInterest(connection);
}

void Control::PostAnswer(uint64_t key, proto::DaemonPacket packet) {
  mailbox_.Post([this, key, packet = std::move(packet)] { Send(key, packet, {}); });
}

void Control::PostDefaults(core::Budgets budgets, uint64_t restart_timeout_ms) {
  mailbox_.Post([this, budgets, restart_timeout_ms] {
    limits_.SetDefaults(budgets);
    clients_.SetRestartTimeout(restart_timeout_ms);
  });
}

void Control::PostExpel(ClientId client, std::string why) {
  mailbox_.Post([this, client, why = std::move(why)] {
    Connection* connection = Find(clients_.KeyOf(client));
    if (connection == nullptr) return;
    Fail(*connection, 0, ErrorCode::kCorrupt, why);
    HangUp(*connection);
  });
}

}  // namespace ravenstore::daemon
