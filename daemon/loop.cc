#include "daemon/loop.h"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/check.h"
#include "core/size_text.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::Duration;
using core::SlotId;
using core::ToInt;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// Bounds of the work on one client in one pass, so that nobody waits long for his turn.
constexpr size_t kRequestsPerPass = 256;
constexpr size_t kTicketsPerPass = 256;
// Of a pass for all users, and at least for each: a log entry, a request and a ticket are one each.
constexpr uint32_t kUnitsPerPass = 1024;
constexpr uint32_t kUnitsLeast = 64;
constexpr size_t kClosuresPerPass = 16;
// While hot clients keep the loop polling, the doorbells of the others are looked at this often.
constexpr Duration kSourcePollPeriod = microseconds(20);
// Clients with tensors away get their logs read at this interval until they were silent for so
// long.
constexpr Duration kWarmPoll = milliseconds(1);
constexpr Duration kWarmFor = seconds(1);
constexpr Duration kBackoffMax = milliseconds(1);
constexpr int kEpollEvents = 64;
// A pass as long as that is told, with what took so long.
constexpr Duration kLongPass = milliseconds(2);
constexpr uint64_t kMailboxKey = 0;  // client ids begin at 1

}  // namespace

Loop::Loop(LoopOptions options, device::Devices devices, WorkerPool* workers, Outbox outbox,
           std::vector<std::unique_ptr<AwayMemory>> others)
    : options_(std::move(options)),
      devices_(std::move(devices)),
      workers_(workers),
      outbox_(std::move(outbox)),
      turns_(kUnitsPerPass, kUnitsLeast),
      backoff_(options_.poll),
      memory_("bytes of the daemon's memory", options_.memory.count(), core::Shares::Unit::kBytes) {
  auto next = static_cast<uint16_t>(1 + devices_.size());
  for (auto& memory : others) away_.emplace(core::PoolId{next++}, std::move(memory));
}

Loop::~Loop() {
  if (store_ != nullptr) store_->EndCopies();
}

core::Result<std::unique_ptr<Loop>> Loop::Create(LoopOptions options, device::Devices devices,
                                                 WorkerPool* workers, Outbox outbox,
                                                 std::vector<std::unique_ptr<AwayMemory>> others) {
  RAVEN_CHECK(!devices.empty());
  std::unique_ptr<Loop> loop(new Loop(std::move(options), std::move(devices), workers,
                                      std::move(outbox), std::move(others)));
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

  RAVEN_ASSIGN_OR_RETURN(auto pool, devices_.front()->ReservePoolVaRange(options_.host_capacity,
                                                                         options_.host_numa_node));
  host_pool_ = std::move(pool);
  away_.emplace(core::kHostPool, HostMemory(devices_, host_pool_));
  for (const auto& [pool, device, options] : options_.harvests)
    harvests_.emplace(device, HarvestOf{pool, Harvest(options)});
  RAVEN_RETURN_IF_ERROR(InitStore());
  return InitPinned();
}

core::Pacer* Loop::PacerOf(core::DeviceId owner) {
  return &pacers_.try_emplace(owner, options_.transfers.in_flight).first->second;
}

std::vector<StorePools::Other> Loop::OtherPools() const {
  std::vector<StorePools::Other> others;
  const core::Topology& topology = options_.topology;
  for (const auto& [id, memory] : away_) {
    if (id == core::kHostPool) continue;
    StorePools::Other& other = others.emplace_back();
    other.id = id;
    other.pool = topology.pools()[ToInt(id)];
    other.memory = memory.get();
    for (uint16_t i = 0; i < devices_.size(); ++i)
      other.links.push_back(core::LinkBetween(topology, core::DeviceId{i}, id));
  }
  return others;
}

core::Status Loop::InitStore() {
  PageStore::Hooks hooks;
  hooks.attachment = [this](ClientId client) {
    Session& session = *FindSession(client);
    return std::pair(session.shared(), &session.maps);
  };
  hooks.drop = [this](ClientId client, core::SlotId slot) {
    Session& session = *FindSession(client);
    Session::Row& row = session.RowOf(slot);
    const uint64_t idle_word = row.complete_word();
    if (idle_word == 0) return false;
    row.ForgetPut();
    return session.LeaseOf(slot).Drop(idle_word);
  };
  hooks.is_idle = [this](ClientId client, core::SlotId slot) {
    Session& session = *FindSession(client);
    return session.LeaseOf(slot).word() == session.RowOf(slot).complete_word();
  };
  hooks.publish = [this](ClientId client, core::SlotId slot, core::DeviceId device,
                         core::Bytes offset) {
    Session& session = *FindSession(client);
    uint64_t idle_word = 0;
    if (session.LeaseOf(slot).Publish(ToInt(device), offset, &idle_word))
      session.RowOf(slot).SetStreamComplete(idle_word);
  };
  hooks.promise = [this](ClientId client, core::SlotId slot, core::DeviceId device,
                         core::Bytes offset) { return Promise(client, slot, device, offset); };
  hooks.end_promise = [this](ClientId client, core::SlotId slot, const core::Status& outcome) {
    EndPromise(*FindSession(client), slot, outcome);
  };
  hooks.send_maps = [this](ClientId client) { SendMaps(*FindSession(client)); };
  hooks.pacer = [this](core::DeviceId owner) { return PacerOf(owner); };
  store_ = std::make_unique<PageStore>(
      PageStore::Options{.device_capacity = options_.device_capacity,
                         .arena = options_.arena,
                         .host_capacity = options_.host_capacity,
                         .host_step = options_.host_step,
                         .host_ahead = options_.host_ahead,
                         .page = options_.page,
                         .usual_budget = options_.usual_budget,
                         .guaranteed_part = options_.guaranteed_part,
                         .links = options_.links,
                         .others = OtherPools(),
                         .device_granularity = options_.granularity,
                         .checks = options_.check_moves ? &move_checks_ : nullptr,
                         .transfers = options_.transfers},
      devices_, away_.at(core::kHostPool).get(), workers_, &mailbox_, std::move(hooks));
  return store_->Open();
}

core::Status Loop::InitPinned() {
  Pinned::Hooks hooks;
  hooks.tell = [this](const core::Event& event) {
    ApplyEvent(event);
    Execute();
  };
  hooks.may_pin = [this](ClientId client, core::Bytes block, core::Bytes slab,
                         const core::CopyQuota::Idle& without) {
    return store_->views().MayPin(client, block, slab, without);
  };
  hooks.charge = [this](ClientId client, uint64_t bytes) {
    return Charge(*FindSession(client), bytes);
  };
  hooks.refund = [this](ClientId client, uint64_t bytes) {
    if (Session* session = FindSession(client)) Refund(*session, bytes);
  };
  hooks.expel = [this](ClientId client, const std::string& why) {
    if (Session* session = FindSession(client)) Expel(*session, why);
  };
  hooks.has_unread = [this](ClientId client) {
    const Session* session = FindSession(client);
    return session != nullptr && session->HasRequests();
  };
  hooks.slab_ready = outbox_.pinned_slab;
  hooks.release_slab = outbox_.release_pinned_slab;
  const Pinned::Options options{.capacity = options_.host_capacity,
                                .granularity = options_.granularity,
                                .numa_node = options_.pinned_numa_node};
  RAVEN_ASSIGN_OR_RETURN(pinned_,
                         Pinned::Create(options, devices_, workers_, &mailbox_, std::move(hooks)));
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
      RecordPass();
    } else if (now_ - last_work_ >= options_.spin || !spinner_.Pause()) {
      Sleep();
    }
  }
}

void Loop::RecordPass() {
  const core::Tick end = ipc::Now();
  const Duration length = end - now_;
  if (length > kLongPass && length > 2 * pauses_.Longest()) {
    const auto ms = [](Duration duration) { return static_cast<double>(duration.count()) / 1e6; };
    spdlog::info(
        "a pass of the planner loop took {:.1f} ms: {:.1f} for closures, {:.1f} for tickets, "
        "{:.1f} "
        "for clients, {:.1f} for copies, {:.1f} for the rest",
        ms(length), ms(stages_[0] - now_), ms(stages_[1] - stages_[0]), ms(stages_[2] - stages_[1]),
        ms(stages_[3] - stages_[2]), ms(end - stages_[3]));
  }
  pauses_.Record(length);
}

void Loop::PostEvent(core::Event event) {
  mailbox_.Post([this, event = std::move(event)] {
    ApplyEvent(event);
    Execute();
  });
}

void Loop::Stop() {
  mailbox_.Post([this] { stopping_.store(true, std::memory_order_release); });
}

bool Loop::Pass() {
  turns_.BeginTurn();
  stages_ = {};
  bool busy = mailbox_.empty() ? false : mailbox_.RunSome(kClosuresPerPass) > 0;
  stages_[0] = ipc::Now();
  busy |= PollTickets();
  busy |= pinned_->Poll(now_);
  stages_[1] = ipc::Now();
  busy |= PollHot();
  stages_[2] = ipc::Now();
  busy |= store_->Poll(now_, &plan_);
  NoteFailedPools();
  Execute();
  ReleaseQuiet();
  stages_[3] = ipc::Now();
  // A quiet pass has the time to look for the clients that are not polled.
  if (!busy || now_ - last_source_poll_ > kSourcePollPeriod) {
    last_source_poll_ = now_;
    PollSources();
  }
  if (now_ >= store_->NextWake()) {
    ApplyEvent(core::TimePassed{});
    Execute();
  }
  if (!harvests_.empty()) UpdateHarvests();
  if (now_ >= give_back_timer_.due()) {
    give_back_timer_.Begin(now_);
    GiveBackMemory();
  }
  return busy;
}

void Loop::PollSources() {
  std::array<epoll_event, kEpollEvents> events;
  const int n = ::epoll_wait(epoll_.get(), events.data(), kEpollEvents, 0);
  HandleEvents({events.data(), static_cast<size_t>(std::max(n, 0))});
}

// Doorbells are edge-triggered: each ring shows once, and nothing need be read to silence it.
void Loop::HandleEvents(std::span<const epoll_event> events) {
  for (const epoll_event& event : events) {
    if (event.data.u64 == kMailboxKey) continue;
    if (Session* session = FindSession(ClientId{static_cast<uint32_t>(event.data.u64)})) {
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
  const core::Tick copies = store_->NextPump(now_ + options_.poll);
  if (copies <= now_ + options_.poll) return std::max(copies - now_, Duration(0));
  const bool waiting = store_->views().stats().waiting > 0;
  core::Tick next =
      std::min({copies, store_->NextWake(), give_back_timer_.due(), pinned_->NextWake()});
  for (const auto& [device, one] : harvests_) next = std::min(next, one.harvest.deadline());
  Duration bound = next == core::kNever ? Duration::max() : std::max(next - now_, Duration(0));
  if (!with_tickets_.empty() || pinned_->awaits_tickets()) {
    bound = std::min(bound, waiting ? options_.poll : backoff_);
    backoff_ = std::min(backoff_ * 2, kBackoffMax);
  }
  if (!recorders_.empty()) return std::min(bound, options_.poll);
  if (waiting) return std::min(bound, kWarmPoll);
  for (const Session* session : lately_) {
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
    std::array<epoll_event, kEpollEvents> events;
    int n = ::epoll_pwait2(epoll_.get(), events.data(), kEpollEvents,
                           bound == Duration::max() ? nullptr : &timeout, nullptr);
    if (n < 0 && errno == ENOSYS) {
      // Before Linux 5.11: whole milliseconds.
      const auto milliseconds =
          bound == Duration::max()
              ? -1
              : std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(bound, seconds(60)))
                    .count();
      n = ::epoll_wait(epoll_.get(), events.data(), kEpollEvents, static_cast<int>(milliseconds));
    }
    now_ = ipc::Now();
    HandleEvents({events.data(), static_cast<size_t>(std::max(n, 0))});
  }
  PollColdLogs();
}

bool Loop::CoolDown(Session& session) {
  if (!ipc::GoToSleep(&session.segment()->header.daemon_asleep,
                      [&session] { return session.HasWork(); })) {
    return false;
  }
  session.hot = false;
  TrackRecent(session);
  return true;
}

void Loop::TrackRecent(Session& session) {
  if (!session.lately) lately_.push_back(&session);
  session.lately = true;
}

// It has tensors elsewhere, or on their way, and did something lately: its puts are worth knowing
// of.
bool Loop::IsWarm(const Session& session) const {
  return !session.gone && now_ - session.last_active < kWarmFor &&
         store_->views().View(session.id()).away_used() > core::Bytes{0};
}

void Loop::PollColdLogs() {
  // A put of anybody may be what a request waits for. With many clients that is many cache lines,
  // so not at every wake.
  const bool waited_for = store_->views().stats().waiting > 0 && now_ - last_sweep_ >= kWarmPoll;
  if (waited_for || !recorders_.empty()) {
    last_sweep_ = now_;
    for (auto& [id, session] : sessions_) {
      if (session->hot || session->gone) continue;
      if (!waited_for && !IsRecorded(*session)) continue;
      if (PollColdLog(*session) == 0) continue;
      session->last_active = now_;
      TrackRecent(*session);
    }
    return;
  }
  for (size_t i = 0; i < lately_.size();) {
    Session& session = *lately_[i];
    if (!session.hot && now_ - session.last_active >= kWarmFor) {
      session.lately = false;
      lately_[i] = lately_.back();
      lately_.pop_back();
      continue;
    }
    if (!session.hot && IsWarm(session) && PollColdLog(session) > 0) session.last_active = now_;
    ++i;
  }
}

void Loop::ReadLogs() {
  for (auto& [id, session] : sessions_) {
    if (!session->gone) PollColdLog(*session);
  }
}

void Loop::ReadLog(ClientId client) {
  Session* session = FindSession(client);
  if (session != nullptr && !session->gone) PollColdLog(*session);
}

void Loop::StartRecording(uint64_t key, Recorder::Options options) {
  const auto [added, is_new] =
      recorders_.emplace(key, std::make_unique<Recorder>(std::move(options)));
  RAVEN_CHECK(is_new);
  Recorder& recorder = *added->second;
  for (auto& [id, session] : sessions_) {
    const Attachment& attachment = session->attachment();
    if (recorder.Wants(attachment.id, attachment.uid)) recorder.Answered(id, now_);
  }
}

void Loop::StopRecording(uint64_t key) {
  auto stopped = recorders_.extract(key);
  if (stopped.empty()) return;
  // It may know of a million tensors.
  workers_->Run(kNoUser, [recorder = std::shared_ptr<Recorder>(std::move(stopped.mapped()))] {});
}

Recorder* Loop::recorder(uint64_t key) {
  const auto found = recorders_.find(key);
  return found == recorders_.end() ? nullptr : found->second.get();
}

size_t Loop::PollColdLog(Session& session) {
  const size_t most = std::min<size_t>(proto::kLogLaneEntries, UnitsLeft(session));
  return most == 0 ? 0 : PollLog(session, most);
}

bool Loop::PollHot() {
  bool busy = false;
  std::optional<core::ClientId> left_out;
  // By index: a request may change the list (a client that breaks the protocol leaves it). Not from
  // the first each time: the clients of a user who wants more than a pass has take turns.
  size_t looks = hot_.size();
  for (size_t i = hot_begin_; looks > 0 && !hot_.empty(); --looks) {
    if (i >= hot_.size()) i = 0;
    Session* session = hot_[i];
    if (UnitsLeft(*session) == 0) {
      busy = true;
      if (!left_out) left_out = session->id();
    } else if (PollSession(*session)) {
      busy = true;
    } else if (now_ - session->last_active > options_.spin && CoolDown(*session)) {
      hot_[i] = hot_.back();
      hot_.pop_back();
      continue;
    }
    ++i;
  }
  if (left_out) {
    const auto next = std::find_if(hot_.begin(), hot_.end(), [&](const Session* session) {
      return session->id() == *left_out;
    });
    hot_begin_ = static_cast<size_t>(next - hot_.begin());
  }
  return busy;
}

bool Loop::PollSession(Session& session) {
  const bool mapped = PollMaps(session);
  // The log first: a request that needs room should find every put that came before it. A client
  // may log without end, so its requests wait for no more than a lane of entries.
  const size_t logged = PollLog(session, std::min<size_t>(kAccessesPerPass, UnitsLeft(session)));
  bool busy = mapped || logged > 0;
  if (session.faulty) return busy;
  if (logged == kAccessesPerPass && ++session.log_passes < kPassesForLog) {
    session.last_active = now_;
    return busy;
  }
  session.log_passes = 0;
  proto::Request request;
  size_t accesses = 0;
  for (size_t i = 0; i < kRequestsPerPass && accesses < kAccessesPerPass; ++i) {
    if (UnitsLeft(session) == 0) break;
    const ipc::Take take = session.NextRequest(&request);
    if (take == ipc::Take::kEmpty) break;
    busy = true;
    if (take == ipc::Take::kCorrupt) {
      Expel(session, "the request ring of this client is corrupt");
      break;
    }
    turns_.Spend(session.attachment().tenant, 1);
    // What its client logged before it asked, which may be later than the look at the log above.
    accesses += ReadAccesses(session, kAccessesPerPass);
    HandleRequest(session, request);
    Execute();
    if (session.faulty) break;
  }
  if (busy) session.last_active = now_;
  return busy;
}

bool Loop::PollTickets() {
  bool busy = false;
  for (size_t i = 0; i < with_tickets_.size();) {
    Session* session = FindSession(with_tickets_[i]);
    if (session != nullptr) {
      const auto reached = [&](const TicketQueues::Waiting& waiting) {
        busy = true;
        turns_.Spend(session->attachment().tenant, 1);
        if (!store_->views().Knows(waiting.tensor)) return;
        if (waiting.idle_word == 0) {
          ApplyEvent(core::Freed{waiting.tensor});
          return;
        }
        const SlotId slot = store_->views().View(waiting.tensor).slot;
        LeaseRow lease = session->LeaseOf(slot);
        // An older put's ticket says nothing of the last one's.
        if (lease.word() != waiting.idle_word) return;
        // While a get on another device waits for just this there is no put to be found quiet
        // later.
        const bool idle =
            proto::UnpackLease(waiting.idle_word).state != proto::LeaseState::kFetching;
        if (idle) session->RowOf(slot).SetStreamComplete(waiting.idle_word);
        ApplyEvent(core::StreamComplete{waiting.tensor});
      };
      const size_t before = session->tickets.size();
      const auto most = std::min<size_t>(kTicketsPerPass, UnitsLeft(*session));
      if (most > 0) session->tickets.Poll(*session->segment(), most, reached);
      Refund(*session, (before - session->tickets.size()) * TicketQueues::kMemory);
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

void Loop::NoteFailedPools() {
  for (const auto& [pool, memory] : away_) {
    if (failed_.contains(pool)) continue;
    const core::Status health = memory->Health();
    if (health.ok()) continue;
    failed_.insert(pool);
    spdlog::error("{} failed, what lies there alone is lost: {}", store_->views().NameOf(pool),
                  core::Describe(health.error()));
    ApplyEvent(core::PoolFailed{pool});
  }
}

void Loop::SetTenant(core::TenantId tenant, core::Budgets budgets) {
  ApplyEvent(core::TenantLimits{tenant, budgets});
  Execute();
}

void Loop::SetDeviceLimit(core::DeviceId device, core::Bytes capacity) {
  ApplyEvent(core::DeviceLimit{device, capacity});
  Execute();
}

void Loop::LookAtDevices(const std::vector<MemoryWatch::Seen>& seen) {
  PaceCopies(seen);
  LookAtHarvests(seen);
  Execute();
}

void Loop::PaceCopies(const std::vector<MemoryWatch::Seen>& seen) {
  for (auto& [owner, pacer] : pacers_) {
    const double rate = seen[ToInt(owner)].busy ? options_.busy_bytes_per_second : 0;
    if (rate == pacer.rate()) continue;
    pacer.SetRate(rate);
    for (const auto& [pool, memory] : away_) {
      if (memory->owner() == owner) ApplyEvent(core::PoolRate{pool, rate});
    }
    spdlog::debug("device {} is {}: others' copies to its memory are {}", ToInt(owner),
                  rate > 0 ? "busy" : "idle", rate > 0 ? "capped" : "not capped");
  }
}

void Loop::LookAtHarvests(const std::vector<MemoryWatch::Seen>& seen) {
  for (auto& [device, one] : harvests_) {
    const MemoryWatch::Seen& of_device = seen[ToInt(device)];
    if (!of_device.fault.empty()) continue;  // what is there stays, and nothing more comes
    const bool stale = one.in_motion > 0 || of_device.at <= one.moved;
    const core::Bytes before = one.harvest.most();
    const core::Bytes most =
        one.harvest.Look(now_, HeldOf(device), {of_device.free, of_device.idle, stale});
    if (most != before) ApplyEvent(core::PoolLimit{one.pool, most});
  }
}

core::Status Loop::GiveBackHarvest(core::DeviceId device, core::Bytes bytes, core::Duration within,
                                   Harvest::Then then) {
  const auto found = harvests_.find(device);
  const std::string name = "device " + std::to_string(ToInt(device));
  if (found == harvests_.end())
    return core::Error{core::ErrorCode::kInvalidArgument, "nothing is harvested of " + name};
  const core::Bytes held = HeldOf(device);
  if (bytes > held) {
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "of " + name + ' ' + core::SizeText(held) +
                           " are harvested, less than the " + core::SizeText(bytes) +
                           " to give back"};
  }
  HarvestOf& one = found->second;
  ApplyEvent(
      core::PoolLimit{one.pool, one.harvest.GiveBack(now_, held, bytes, within, std::move(then))});
  Execute();
  return core::Ok();
}

std::optional<Harvest::View> Loop::ViewHarvest(core::DeviceId device) const {
  const auto found = harvests_.find(device);
  if (found == harvests_.end()) return std::nullopt;
  const HarvestOf& one = found->second;
  const core::TierView there = store_->views().OtherTier(one.pool);
  return Harvest::View{there.capacity, there.used, one.harvest.counts()};
}

void Loop::LoseHarvest(core::PoolId pool, core::Bytes bytes) {
  for (auto& [device, one] : harvests_) {
    if (one.pool == pool) one.harvest.Lose(bytes);
  }
}

void Loop::NoteChunk(core::PoolId pool, bool begins) {
  for (auto& [device, one] : harvests_) {
    if (one.pool != pool) continue;
    one.in_motion += begins ? 1 : -1;
    one.moved = ipc::Now();  // the pass may have begun before
  }
}

void Loop::UpdateHarvests() {
  for (auto& [device, one] : harvests_) {
    one.harvest.Update(now_, HeldOf(device), [this, pool = one.pool] { return WhyNotGiven(pool); });
  }
}

std::string Loop::WhyNotGiven(core::PoolId pool) const {
  return store_->views().OtherTier(pool).used > core::Bytes{0}
             ? "copies to it or from it are under way"
             : "the driver has not released its memory yet";
}

void Loop::SetClientBudgets(ClientId client, core::Budgets budgets) {
  ApplyEvent(core::ClientLimits{client, budgets});
  Execute();
}

void Loop::Attach(std::shared_ptr<Attachment> attachment) {
  const ClientId id = attachment->id;
  const core::ClientAttached event{id, attachment->tenant, attachment->budgets};
  auto session = std::make_unique<Session>(std::move(attachment));
  epoll_event poll{};
  poll.events = EPOLLIN | EPOLLET;
  poll.data.u64 = ToInt(id);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, session->attachment().doorbell.fd(), &poll) != 0) {
    // Nobody would hear it ring. Of watches a user of the system has only so many.
    const int error = errno;
    spdlog::warn("client {} cannot be watched: {}", ToInt(id), std::strerror(error));
    outbox_.expel(id, std::string("the daemon cannot watch one more client (") +
                          std::strerror(error) +
                          "): end some jobs, or raise fs.epoll.max_user_watches");
  }
  session->last_active = now_;
  MakeHot(*session);
  sessions_.emplace(id, std::move(session));
  ApplyEvent(event);
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
  std::erase(lately_, session);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, session->attachment().doorbell.fd(), nullptr);
  on_gone_[client] = std::move(done);
  pinned_->Gone(client);
  ApplyEvent(core::ClientGone{client});
  Execute();
  ReleaseIfGone(*session);
}

void Loop::ReleaseIfGone(Session& session) {
  const ClientId client = session.id();
  if (!session.gone || !store_->IsQuiet(client)) return;
  store_->Forget(client);
  Refund(session, session.charged);
  auto done = std::move(on_gone_[client]);
  on_gone_.erase(client);
  // Its tables may be large, too.
  std::shared_ptr<Session> gone = std::move(sessions_.extract(client).mapped());
  const core::TenantId tenant = gone->attachment().tenant;
  workers_->Run(tenant, [this, gone = std::move(gone), done = std::move(done)]() mutable {
    gone.reset();
    if (done) done();
    mailbox_.Post([this] { give_back_timer_.Freed(now_); });
  });
}

void Loop::ReleaseQuiet() {
  std::vector<Session*> gone;
  for (const auto& [client, done] : on_gone_) gone.push_back(FindSession(client));
  for (Session* session : gone) ReleaseIfGone(*session);
}

void Loop::GiveBackMemory() {
  auto chunks = give_back_.Take();
  if (chunks.empty()) return PutBackMemory();
  workers_->Run(kNoUser, [this, chunks = std::move(chunks)] {
    GiveBack::Release(chunks);
    mailbox_.Post([this] { GiveBackMemory(); });
  });
}

void Loop::PutBackMemory() {
  if (give_back_.PutBack()) return give_back_timer_.End();
  // By way of a worker: posted here it would be done in the same pass.
  workers_->Run(kNoUser, [this] { mailbox_.Post([this] { PutBackMemory(); }); });
}

void Loop::Trim(ClientId client) {
  ApplyEvent(core::Trimmed{client});
  Execute();
  if (Session* session = FindSession(client)) pinned_->ReleaseIdle(session->attachment().tenant);
}

core::Status Loop::KeepInPlace(ClientId client, core::SlotId slot, core::TensorId tensor,
                               Keeping keeping) {
  Session* session = FindSession(client);
  if (session == nullptr || session->gone)
    return core::Error{core::ErrorCode::kNotFound, "the client is gone"};
  ReadLog(client);  // it may have the get
  const bool is_there = ToInt(slot) < proto::kSlotCapacity && tensor != core::kNoTensor &&
                        store_->views().Find(client, slot) == tensor;
  if (!is_there) return core::Error{core::ErrorCode::kNotFound, "there is no such tensor"};
  return store_->KeepInPlace(client, slot, keeping);
}

void Loop::PinnedAlloc(ClientId client, Pinned::Ask ask) {
  Session* session = FindSession(client);
  if (session == nullptr || session->gone)
    return ask.reply(core::Error{core::ErrorCode::kNotFound, "the client is gone"});
  // What it freed before it asked lies in its ring still; of more than a pass reads the rest is
  // waited for.
  PollSession(*session);
  // The room of copies that its frees end is there after the store's next look.
  store_->Poll(now_, &plan_);
  Execute();
  pinned_->Alloc(session->shared(), std::move(ask));
}

void Loop::PinnedFree(ClientId client, uint64_t block, std::vector<proto::WordValue> tickets) {
  pinned_->Free(client, block, tickets);
}

void Loop::PinnedSlabReleased(ClientId client, core::PinnedSlabId slab) {
  if (!pinned_->SlabReleased(client, slab)) ++bad_requests_;
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
  return !store_->IsCopying() && store_->views().stats().waiting == 0;
}

}  // namespace ravenstore::daemon
