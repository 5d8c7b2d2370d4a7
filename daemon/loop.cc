#include "daemon/loop.h"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>

#include "core/check.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::Duration;
using core::SlotId;
using core::TensorId;
using core::ToInt;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// Bounds of the work on one client in one pass, so that nobody waits long for his turn.
constexpr size_t kRequestsPerPass = 256;
constexpr size_t kAccessesPerPass = 1024;
constexpr uint32_t kRescanPerPass = 1024;
constexpr size_t kClosuresPerPass = 16;
// While hot clients keep the loop polling, the doorbells of the others are looked at this often.
constexpr Duration kLookAround = microseconds(20);
// Clients with tensors away get their logs read at this interval until they were silent for so
// long.
constexpr Duration kWarmPoll = milliseconds(1);
constexpr Duration kWarmFor = seconds(1);
constexpr Duration kBackoffMax = milliseconds(1);
constexpr int kEpollEvents = 64;
constexpr uint64_t kFarthest = uint64_t{1} << 51;  // of a time hint: 2^61 ns
constexpr uint64_t kMailboxKey = 0;                // client ids begin at 1

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

core::NextUse NextUseOf(uint64_t packed) {
  const proto::Hint hint = proto::UnpackHint(packed);
  switch (hint.kind) {
    case proto::HintKind::kNeededAt:
      // A stranger's number: far enough is far enough.
      return {core::NextUse::Kind::kAt,
              core::Tick(Duration(static_cast<int64_t>(std::min(hint.value, kFarthest)) << 10)), 0};
    case proto::HintKind::kOrder:
      return {
          core::NextUse::Kind::kOrder, {}, static_cast<int64_t>(hint.value) - proto::kOrderBias};
    case proto::HintKind::kNotNeeded: return {core::NextUse::Kind::kNever, {}, 0};
    case proto::HintKind::kNone: break;
  }
  return {};
}

Duration CostOf(uint16_t recompute) {
  return Duration(static_cast<int64_t>(proto::UnpackRecompute(recompute)));
}

}  // namespace

Loop::Loop(LoopOptions options, device::Devices devices, WorkerPool* workers, Outbox outbox)
    : options_(std::move(options)),
      devices_(std::move(devices)),
      workers_(workers),
      outbox_(std::move(outbox)),
      planner_(std::make_unique<core::Planner>(options_.planner)),
      backoff_(options_.poll) {}

Loop::~Loop() = default;

core::Result<std::unique_ptr<Loop>> Loop::Create(LoopOptions options, device::Devices devices,
                                                 WorkerPool* workers, Outbox outbox) {
  RAVEN_CHECK(!devices.empty());
  std::unique_ptr<Loop> loop(
      new Loop(std::move(options), std::move(devices), workers, std::move(outbox)));
  RAVEN_RETURN_IF_ERROR(loop->Init());
  return loop;
}

core::Status Loop::Init() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return core::Error{core::ErrorCode::kSystem, "epoll_create1 failed"};
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kMailboxKey;
  RAVEN_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, mailbox_.descriptor(), &event) == 0);

  words_ = std::make_unique<device::Word[]>(2 * devices_.size());
  RAVEN_ASSIGN_OR_RETURN(auto pool, devices_.front()->ReserveHostArena(
                                        options_.planner.host_capacity, options_.host_numa_node));
  host_pool_ = std::move(pool);
  lanes_.resize(devices_.size());
  for (size_t i = 0; i < devices_.size(); ++i) {
    const core::DeviceId device{static_cast<uint16_t>(i)};
    lanes_[i].out = std::make_unique<TransferLane>(
        devices_[i], device::Direction::kDeviceToHost, options_.transfers, &words_[2 * i],
        [this, device](JobId job, bool ok) { FinishOut(device, job, ok); });
    lanes_[i].in = std::make_unique<TransferLane>(
        devices_[i], device::Direction::kHostToDevice, options_.transfers, &words_[2 * i + 1],
        [this, device](JobId job, bool ok) { FinishIn(device, job, ok); });
    RAVEN_RETURN_IF_ERROR(lanes_[i].out->Open());
    RAVEN_RETURN_IF_ERROR(lanes_[i].in->Open());
  }
  return core::Ok();
}

void Loop::Run() {
  // Short sleeps are meant: the default slack would double a poll of 50 us.
  ::prctl(PR_SET_TIMERSLACK, 1000);
  while (!stopping_.load(std::memory_order_acquire)) {
    now_ = ipc::Now();
    const bool busy = Pass();
    if (busy) {
      last_work_ = now_;
      backoff_ = options_.poll;
      pauses_.Record(ipc::Now() - now_);
    } else if (now_ - last_work_ < options_.spin) {
      Relax();
    } else {
      Sleep();
    }
  }
}

void Loop::Stop() {
  mailbox_.Post([this] { stopping_.store(true, std::memory_order_release); });
}

bool Loop::Pass() {
  bool busy = mailbox_.empty() ? false : mailbox_.RunSome(kClosuresPerPass) > 0;
  busy |= PollTickets();
  busy |= PollHot();
  busy |= PollLanes();
  // A quiet pass has the time to look for the clients that are not polled.
  if (!busy || now_ - last_look_ > kLookAround) {
    last_look_ = now_;
    LookAround();
  }
  if (now_ >= planner_->NextWake()) {
    Feed(core::TimePassed{});
    Execute();
  }
  return busy;
}

void Loop::LookAround() {
  std::array<epoll_event, kEpollEvents> events;
  const int n = ::epoll_wait(epoll_.get(), events.data(), kEpollEvents, 0);
  for (int i = 0; i < n; ++i) {
    if (events[i].data.u64 == kMailboxKey) continue;
    if (Session* session = FindSession(ClientId{static_cast<uint32_t>(events[i].data.u64)})) {
      session->attachment().doorbell.Drain();
      MakeHot(*session);
    }
  }
}

void Loop::MakeHot(Session& session) {
  if (session.hot || session.gone) return;
  ipc::StayAwake(&session.segment()->header.daemon_asleep);
  session.last_active = now_;
  session.hot = true;
  hot_.push_back(&session);
}

Duration Loop::SleepBound() {
  bool copying = false;
  for (const Lanes& lanes : lanes_) copying |= !lanes.out->idle() || !lanes.in->idle();
  if (copying) return options_.poll;
  const bool waiting = planner_->stats().waiting > 0;
  Duration bound = planner_->NextWake() == core::kNever
                       ? Duration::max()
                       : std::max(planner_->NextWake() - now_, Duration(0));
  if (!with_tickets_.empty()) {
    bound = std::min(bound, waiting ? options_.poll : backoff_);
    backoff_ = std::min(backoff_ * 2, kBackoffMax);
  }
  if (waiting) return std::min(bound, kWarmPoll);
  for (const auto& [id, session] : sessions_) {
    if (IsWarm(*session)) return std::min(bound, kWarmPoll);
  }
  return bound;
}

void Loop::Sleep() {
  while (!hot_.empty()) {
    if (!CoolDown(*hot_.back())) return;
    hot_.pop_back();
  }
  const Duration bound = SleepBound();
  if (bound > Duration(0)) {
    timespec timeout{};
    timeout.tv_sec = std::chrono::duration_cast<seconds>(bound).count();
    timeout.tv_nsec = (bound % seconds(1)).count();
    epoll_event event{};
    // Only waits: LookAround reads what came, together with what comes meanwhile.
    if (::epoll_pwait2(epoll_.get(), &event, 1, bound == Duration::max() ? nullptr : &timeout,
                       nullptr) < 0 &&
        errno == ENOSYS) {
      // Before Linux 5.11: whole milliseconds.
      const auto milliseconds =
          bound == Duration::max()
              ? -1
              : std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(bound, seconds(60)))
                    .count();
      ::epoll_wait(epoll_.get(), &event, 1, static_cast<int>(milliseconds));
    }
  }
  now_ = ipc::Now();
  LookAround();
  PollQuietLogs();
}

bool Loop::CoolDown(Session& session) {
  if (!ipc::GoToSleep(&session.segment()->header.daemon_asleep,
                      [&session] { return session.HasWork(); })) {
    return false;
  }
  session.hot = false;
  return true;
}

// It has tensors elsewhere, or on their way, and did something lately: its puts are worth knowing
// of.
bool Loop::IsWarm(const Session& session) const {
  return !session.gone && now_ - session.last_active < kWarmFor &&
         planner_->View(session.id()).host_used > core::Bytes{0};
}

void Loop::PollQuietLogs() {
  const bool all = planner_->stats().waiting > 0;
  for (auto& [id, session] : sessions_) {
    if (session->hot || session->gone) continue;
    if (!all && !IsWarm(*session)) continue;
    if (PollLog(*session)) session->last_active = now_;
  }
}

void Loop::ReadLogs() {
  for (auto& [id, session] : sessions_) {
    if (!session->gone) PollLog(*session);
  }
}

bool Loop::PollHot() {
  bool busy = false;
  // By index: a request may change the list (a client that breaks the protocol leaves it).
  for (size_t i = 0; i < hot_.size();) {
    Session* session = hot_[i];
    if (PollSession(*session)) {
      busy = true;
    } else if (now_ - session->last_active > options_.spin && CoolDown(*session)) {
      hot_[i] = hot_.back();
      hot_.pop_back();
      continue;
    }
    ++i;
  }
  return busy;
}

bool Loop::PollSession(Session& session) {
  // The log first: a request that needs room should find every put that came before it.
  bool busy = PollLog(session);
  if (session.faulty) return busy;
  proto::Request request;
  for (size_t i = 0; i < kRequestsPerPass; ++i) {
    const ipc::Take take = session.NextRequest(&request);
    if (take == ipc::Take::kEmpty) break;
    busy = true;
    if (take == ipc::Take::kCorrupt) {
      session.faulty = true;
      ++bad_requests_;
      spdlog::warn("client {}: its request ring is corrupt; no longer read", ToInt(session.id()));
      outbox_.expel(session.id(), "the request ring of this client is corrupt");
      break;
    }
    HandleRequest(session, request);
    Execute();
  }
  if (busy) session.last_active = now_;
  return busy;
}

bool Loop::PollLog(Session& session) {
  proto::Access access;
  bool busy = false;
  for (size_t i = 0; i < kAccessesPerPass && session.NextAccess(&access); ++i) {
    busy = true;
    const SlotId slot{access.slot};
    const TensorId tensor = session.RowOf(slot).tensor;
    if (tensor == core::kNoTensor || tensor == Session::kPending) continue;
    if (access.op == proto::AccessOp::kGet) {
      Feed(core::GetSeen{tensor});
      // The put that ended this use may have been read from the row already, at an earlier entry,
      // and its own entry may have been dropped: it is told again.
      session.RowOf(slot).quiet_word = 0;
    }
    HandlePut(session, slot);
  }
  if (session.LogWasDropped()) session.rescan = 0;
  if (session.rescan < session.rows()) Rescan(session);
  Execute();
  return busy;
}

// Entries were dropped: puts may be unknown, so the rows themselves are read, some in each pass.
void Loop::Rescan(Session& session) {
  const uint32_t end = std::min(session.rows(), session.rescan + kRescanPerPass);
  for (; session.rescan < end; ++session.rescan) {
    const SlotId slot{session.rescan};
    const TensorId tensor = session.RowOf(slot).tensor;
    if (tensor != core::kNoTensor && tensor != Session::kPending) HandlePut(session, slot);
  }
}

void Loop::HandlePut(Session& session, SlotId slot) {
  Session::Row& row = session.RowOf(slot);
  PutRecord put;
  // A later get has taken it again: that use's put will be logged too.
  if (!session.LeaseOf(slot).ReadPut(&put) || put.word == row.quiet_word) return;
  Feed(core::PutSeen{row.tensor, put.writes, NextUseOf(put.hint), CostOf(put.recompute)});
  AwaitQuiet(session, slot, row.tensor, put.word);
}

// Tells the planner when the ticket of the put that left `idle_word` is reached.
void Loop::AwaitQuiet(Session& session, SlotId slot, TensorId tensor, uint64_t idle_word) {
  const proto::LeaseSlot& cells = session.segment()->slots[ToInt(slot)];
  const auto ticket = proto::UnpackWordValue(cells.ticket.load(std::memory_order_acquire));
  if (Reached(*session.segment(), ticket)) {
    session.RowOf(slot).quiet_word = idle_word;
    Feed(core::Quiet{tensor});
    return;
  }
  if (session.tickets.empty()) with_tickets_.push_back(session.id());
  session.tickets.Push(ticket, tensor, idle_word);
}

bool Loop::PollTickets() {
  bool busy = false;
  for (size_t i = 0; i < with_tickets_.size();) {
    Session* session = FindSession(with_tickets_[i]);
    if (session != nullptr) {
      session->tickets.Poll(*session->segment(), [&](const TicketQueues::Waiting& waiting) {
        busy = true;
        if (!planner_->Knows(waiting.tensor)) return;
        if (waiting.idle_word == 0) {
          Feed(core::Freed{waiting.tensor});
          return;
        }
        const SlotId slot = planner_->View(waiting.tensor).slot;
        Lease lease = session->LeaseOf(slot);
        // An older put's ticket says nothing of the last one's.
        if (lease.word() != waiting.idle_word) return;
        // While a get on another device waits for just this there is no put to be found quiet
        // later.
        const bool idle = lease.state() != proto::LeaseState::kFetching;
        if (idle) session->RowOf(slot).quiet_word = waiting.idle_word;
        Feed(core::Quiet{waiting.tensor});
      });
    }
    if (session == nullptr || session->tickets.empty()) {
      with_tickets_[i] = with_tickets_.back();
      with_tickets_.pop_back();
    } else {
      ++i;
    }
  }
  Execute();
  return busy;
}

bool Loop::PollLanes() {
  bool busy = false;
  for (Lanes& lanes : lanes_) {
    busy |= lanes.in->Pump();
    busy |= lanes.out->Pump();
  }
  Execute();
  return busy;
}

void Loop::HandleRequest(Session& session, const proto::Request& request) {
  if (request.slot >= proto::kSlotCapacity)
    return BadRequest(session, request, "slot out of range");
  switch (static_cast<proto::RequestOp>(request.op)) {
    case proto::RequestOp::kCreate: return HandleCreate(session, request);
    case proto::RequestOp::kFetch: return HandleFetch(session, request);
    case proto::RequestOp::kFree: return HandleFree(session, request);
    case proto::RequestOp::kStep: return Feed(core::StepMarked{session.id()});
  }
  BadRequest(session, request, "unknown operation");
}

void Loop::BadRequest(Session& session, const proto::Request& request, const char* why) {
  // Answering is the client's own concern: a well-behaved library never gets here, and a row in a
  // state that expects no answer must not be touched.
  ++bad_requests_;
  spdlog::debug("client {}: request {} on slot {} ignored: {}", ToInt(session.id()), request.op,
                request.slot, why);
}

void Loop::HandleCreate(Session& session, const proto::Request& request) {
  const SlotId slot{request.slot};
  Session::Row& row = session.RowOf(slot);
  Lease lease = session.LeaseOf(slot);
  if (row.tensor != core::kNoTensor || lease.state() != proto::LeaseState::kRequested) {
    return BadRequest(session, request, "the slot is not free");
  }
  if (request.device >= devices_.size()) {
    session.RememberFailure(slot, "no device " + std::to_string(request.device) +
                                      ": the daemon has " + std::to_string(devices_.size()));
    lease.Refuse(core::ErrorCode::kNotFound);
    return;
  }
  row.tensor = Session::kPending;
  Feed(core::CreateRequested{session.id(), slot, core::Bytes(request.bytes),
                             core::DeviceId{request.device}, core::NameId{request.name},
                             core::Tick(Duration(request.deadline_ns)),
                             (request.flags & proto::kFailFast) != 0});
}

void Loop::HandleFetch(Session& session, const proto::Request& request) {
  const SlotId slot{request.slot};
  const TensorId tensor = session.RowOf(slot).tensor;
  if (tensor == core::kNoTensor || ToInt(tensor) != request.id) {
    return BadRequest(session, request, "no such tensor");
  }
  if (session.LeaseOf(slot).state() != proto::LeaseState::kFetching) {
    return BadRequest(session, request, "no get is under way");
  }
  if (request.device >= devices_.size()) {
    session.RememberFailure(slot, "no device " + std::to_string(request.device));
    session.LeaseOf(slot).Deny(core::ErrorCode::kNotFound);
    return;
  }
  if (planner_->View(tensor).residency == core::Residency::kOnDevice) SettlePut(session, request);
  Feed(core::FetchRequested{tensor, core::DeviceId{request.device},
                            core::Tick(Duration(request.deadline_ns))});
}

// A fetch of a tensor that is still on a device moves it to another one. The word no longer shows
// the put before it, so the log's entry says nothing: the row and the request do.
void Loop::SettlePut(Session& session, const proto::Request& request) {
  const TensorId tensor{request.id};
  const proto::LeaseSlot& row = session.segment()->slots[request.slot];
  Feed(core::PutSeen{tensor, row.writes.load(std::memory_order_acquire),
                     NextUseOf(row.hint.load(std::memory_order_acquire)),
                     CostOf(row.recompute.load(std::memory_order_acquire))});
  const proto::WordValue ticket = proto::UnpackWordValue(request.ticket);
  if (Reached(*session.segment(), ticket)) {
    Feed(core::Quiet{tensor});
    return;
  }
  if (session.tickets.empty()) with_tickets_.push_back(session.id());
  session.tickets.Push(ticket, tensor, session.LeaseOf(SlotId{request.slot}).word());
}

void Loop::HandleFree(Session& session, const proto::Request& request) {
  const SlotId slot{request.slot};
  const TensorId tensor = session.RowOf(slot).tensor;
  if (tensor == core::kNoTensor || ToInt(tensor) != request.id) {
    return BadRequest(session, request, "no such tensor");
  }
  if (session.LeaseOf(slot).state() != proto::LeaseState::kFreeing) {
    return BadRequest(session, request, "no free is under way");
  }
  const proto::WordValue ticket = proto::UnpackWordValue(request.ticket);
  if (Reached(*session.segment(), ticket)) {
    Feed(core::Freed{tensor});
    return;
  }
  if (session.tickets.empty()) with_tickets_.push_back(session.id());
  session.tickets.Push(ticket, tensor, 0);
}

void Loop::SetTenant(core::TenantId tenant, core::Budgets budgets) {
  Feed(core::TenantLimits{tenant, budgets});
  Execute();
}

void Loop::SetDeviceLimit(core::DeviceId device, core::Bytes capacity) {
  Feed(core::DeviceLimit{device, capacity});
  Execute();
}

void Loop::SetClientBudgets(ClientId client, core::Budgets budgets) {
  Feed(core::ClientLimits{client, budgets});
  Execute();
}

void Loop::Attach(std::shared_ptr<Attachment> attachment) {
  const ClientId id = attachment->id;
  const core::ClientAttached event{id, attachment->tenant, attachment->budgets};
  auto session = std::make_unique<Session>(std::move(attachment));
  epoll_event poll{};
  poll.events = EPOLLIN;
  poll.data.u64 = ToInt(id);
  RAVEN_CHECK(
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, session->attachment().doorbell.fd(), &poll) == 0);
  session->last_active = now_;
  MakeHot(*session);
  sessions_.emplace(id, std::move(session));
  Feed(event);
  Execute();
}

void Loop::Detach(ClientId client, std::function<void()> done) {
  Session* session = FindSession(client);
  if (session == nullptr) {
    if (done) done();
    return;
  }
  if (session->gone) return;
  session->gone = true;
  session->hot = false;
  std::erase(hot_, session);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, session->attachment().doorbell.fd(), nullptr);
  on_gone_[client] = std::move(done);
  Feed(core::ClientGone{client});
  Execute();
  ReleaseIfGone(*session);
}

void Loop::ReleaseIfGone(Session& session) {
  if (!session.gone || session.copies > 0) return;
  const ClientId client = session.id();
  auto done = std::move(on_gone_[client]);
  on_gone_.erase(client);
  workers_->Run([attachment = session.shared(), done = std::move(done)]() mutable {
    attachment.reset();
    if (done) done();
  });
  sessions_.erase(client);
}

void Loop::Trim(ClientId client) {
  Feed(core::Trimmed{client});
  Execute();
}

void Loop::SlabReleased(ClientId client, core::DeviceId device, core::Bytes offset) {
  Session* session = FindSession(client);
  if (session == nullptr || session->gone) return;
  if (session->releasing.erase({ToInt(device), offset.count()}) == 0) {
    ++bad_requests_;
    return;
  }
  workers_->Run([this, attachment = session->shared(), client, device, offset] {
    if (auto status = attachment->arenas[ToInt(device)]->Unmap(offset); !status.ok()) {
      spdlog::error("client {}: slab not unmapped: {}", ToInt(client),
                    core::Describe(status.error()));
      return;
    }
    mailbox_.Post([this, client, device, offset] {
      Feed(core::SlabRemoved{client, device, offset});
      Execute();
    });
  });
}

Session* Loop::FindSession(ClientId client) {
  const auto found = sessions_.find(client);
  return found == sessions_.end() ? nullptr : found->second.get();
}

uint64_t Loop::log_dropped() const {
  uint64_t dropped = 0;
  for (const auto& [id, session] : sessions_) dropped += session->log_dropped();
  return dropped;
}

bool Loop::Quiescent() const {
  for (const Lanes& lanes : lanes_) {
    if (!lanes.out->idle() || !lanes.in->idle()) return false;
  }
  return planner_->stats().waiting == 0;
}

}  // namespace ravenstore::daemon
