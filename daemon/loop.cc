#include "daemon/loop.h"

#include <spdlog/spdlog.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::Duration;
using core::ToInt;
using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

// Bounds of the work on one client in one pass, so that other clients need not wait long.
constexpr size_t kRequestsPerPass = 256;
// Log entries of one client that are read in one go, and about the most in a pass. It is also the
// number of rows of a rescan.
constexpr size_t kAccessesPerPass = 256;
// Passes in a row that read a log before its client's requests are taken: one thread's lane.
constexpr uint32_t kPassesForLog = proto::kLogLaneEntries / kAccessesPerPass;
// Of a pass for all users, and at least for each: a log entry, a request and a ticket are one each.
constexpr uint32_t kUnitsPerPass = 1024;
constexpr uint32_t kUnitsLeast = 64;
constexpr size_t kClosuresPerPass = 16;
// While hot clients keep the loop polling, the doorbells of the others are looked at this often.
constexpr Duration kSourcePollPeriod = microseconds(20);
constexpr Duration kBackoffMax = milliseconds(1);
// A longer pass is logged, with the lengths of its parts.
constexpr Duration kLongPass = milliseconds(2);

}  // namespace

Loop::Loop(const LoopOptions& options, size_t devices, WorkerPool* workers, Outbox outbox,
           std::vector<std::unique_ptr<AwayMemory>> others)
    : spin_(options.spin),
      poll_(options.poll),
      state_{.turns = TurnBudget(kUnitsPerPass, kUnitsLeast)},
      sessions_(&state_, std::move(outbox.expel)),
      recorders_(&state_, &sessions_, workers),
      charges_(options.memory),
      waits_(&state_, &sessions_, &charges_),
      replies_(&state_, &sessions_, &recorders_, &charges_, &waits_,
               std::move(outbox.memory_ready)),
      pools_(&state_,
             {.topology = options.topology,
              .busy_bytes_per_second = options.busy_bytes_per_second,
              .in_flight = options.store.transfers.in_flight},
             devices, std::move(others)),
      harvests_(&state_, options.harvests),
      actions_(&state_, &replies_, &pools_, &harvests_, workers, &mailbox_),
      logs_(&state_, &sessions_, &recorders_, &waits_, &actions_),
      requests_(devices, &state_, &sessions_, &recorders_, &charges_, &waits_),
      sealed_(&state_, &sessions_, &replies_, &actions_, &logs_, &waits_, workers),
      departed_(&state_, &sessions_, &charges_, workers, &mailbox_),
      backoff_(options.poll) {}

Loop::~Loop() {
  if (state_.store != nullptr) state_.store->EndCopies();
}

core::Result<std::unique_ptr<Loop>> Loop::Create(LoopOptions options,
                                                 const device::Devices& devices,
                                                 WorkerPool* workers, Outbox outbox,
                                                 std::vector<std::unique_ptr<AwayMemory>> others) {
  RAVEN_CHECK(!devices.empty());
  std::unique_ptr<Loop> loop(new Loop(options, devices.size(), workers, outbox, std::move(others)));
  RAVEN_RETURN_IF_ERROR(loop->Init(std::move(options), devices, workers, outbox));
  return loop;
}

core::Status Loop::Init(LoopOptions options, const device::Devices& devices, WorkerPool* workers,
                        const Outbox& outbox) {
  RAVEN_RETURN_IF_ERROR(sessions_.Open(mailbox_.descriptor()));
  const Pinned::Options pinned{.capacity = options.store.host_capacity,
                               .granularity = options.store.device_granularity,
                               .numa_node = options.pinned_numa_node};
  RAVEN_RETURN_IF_ERROR(
      pools_.ReserveHost(devices, options.store.host_capacity, options.host_numa_node));
  PageStore::Hooks hooks = replies_.StoreHooks();
  hooks.pacer = [this](core::DeviceId owner) { return pools_.PacerOf(owner); };
  options.store.others = pools_.Others();
  options.store.checks = options.check_moves ? &move_checks_ : nullptr;
  state_.store =
      std::make_unique<PageStore>(std::move(options.store), devices, pools_.Of(core::kHostPool),
                                  workers, &mailbox_, std::move(hooks));
  RAVEN_RETURN_IF_ERROR(state_.store->Open());
  RAVEN_ASSIGN_OR_RETURN(state_.pinned,
                         Pinned::Create(pinned, devices, workers, &mailbox_, PinnedHooks(outbox)));
  return core::Ok();
}

Pinned::Hooks Loop::PinnedHooks(const Outbox& outbox) {
  Pinned::Hooks hooks;
  hooks.apply = [this](const core::Event& event) { Apply(event); };
  hooks.may_pin = [this](ClientId client, core::Bytes block, core::Bytes slab,
                         const core::CopyQuota::Idle& without) {
    return store().MayPin(client, block, slab, without);
  };
  hooks.charge = [this](ClientId client, uint64_t bytes) {
    return charges_.Charge(*sessions_.Find(client), bytes);
  };
  hooks.refund = [this](ClientId client, uint64_t bytes) {
    if (Session* session = sessions_.Find(client)) charges_.Refund(*session, bytes);
  };
  hooks.expel = [this](ClientId client, const std::string& why) {
    if (Session* session = sessions_.Find(client)) sessions_.Expel(*session, why);
  };
  hooks.has_unread = [this](ClientId client) {
    const Session* session = sessions_.Find(client);
    return session != nullptr && session->HasRequests();
  };
  hooks.slab_ready = outbox.pinned_slab;
  hooks.release_slab = outbox.release_pinned_slab;
  return hooks;
}

void Loop::Run() {
  // Short sleeps are meant: the default slack would double a poll of 50 us.
  ::prctl(PR_SET_TIMERSLACK, 1000);
  while (!stopping_.load(std::memory_order_acquire)) {
    state_.now = ipc::Now();
    const bool busy = Pass();
    if (busy) {
      last_work_ = state_.now;
      backoff_ = poll_;
      RecordPass();
    } else if (state_.now - last_work_ >= spin_ || !spinner_.Pause()) {
      Sleep();
    }
  }
}

void Loop::RecordPass() {
  const core::Tick end = ipc::Now();
  const Duration length = end - state_.now;
  if (length > kLongPass && length > 2 * pauses_.Longest()) {
    const auto ms = [](Duration duration) { return static_cast<double>(duration.count()) / 1e6; };
    spdlog::info(
        "a pass of the planner loop took {:.1f} ms: {:.1f} for closures, {:.1f} for tickets, "
        "{:.1f} for clients, {:.1f} for copies, {:.1f} for the rest",
        ms(length), ms(stages_[0] - state_.now), ms(stages_[1] - stages_[0]),
        ms(stages_[2] - stages_[1]), ms(stages_[3] - stages_[2]), ms(end - stages_[3]));
  }
  pauses_.Record(length);
}

void Loop::PostEvent(core::Event event) {
  mailbox_.Post([this, event = std::move(event)] { Apply(event); });
}

void Loop::Stop() {
  mailbox_.Post([this] { stopping_.store(true, std::memory_order_release); });
}

bool Loop::Pass() {
  state_.turns.BeginTurn();
  stages_ = {};
  bool busy = mailbox_.empty() ? false : mailbox_.RunSome(kClosuresPerPass) > 0;
  stages_[0] = ipc::Now();
  busy |= waits_.Poll();
  actions_.Execute();
  busy |= pinned().Poll(state_.now);
  stages_[1] = ipc::Now();
  busy |= sessions_.PollHot(spin_, [this](Session& session) { return PollSession(session); });
  stages_[2] = ipc::Now();
  busy |= sealed_.Poll();
  busy |= state_.store->Poll(state_.now, &state_.plan);
  pools_.NoteFailed();
  actions_.Execute();
  departed_.Release();
  stages_[3] = ipc::Now();
  // A quiet pass has the time to look for the clients that are not polled.
  if (!busy || state_.now - last_source_poll_ > kSourcePollPeriod) {
    last_source_poll_ = state_.now;
    sessions_.PollDoorbells();
  }
  if (state_.now >= state_.store->NextWake()) Apply(core::TimePassed{});
  harvests_.Update();
  departed_.ReturnMemory();
  return busy;
}

bool Loop::PollSession(Session& session) {
  const bool mapped = replies_.PollMaps(session);
  // The log first: a request that needs room should find every put that came before it. A client
  // may log without end, so its requests wait for no more than a lane of entries.
  const size_t logged =
      logs_.Read(session, std::min<size_t>(kAccessesPerPass, state_.UnitsLeft(session)));
  bool busy = mapped || logged > 0;
  if (session.faulty || session.sealed) return busy;
  if (logged == kAccessesPerPass && ++session.log_passes < kPassesForLog) {
    session.last_active = state_.now;
    return busy;
  }
  session.log_passes = 0;
  proto::Request request;
  size_t accesses = 0;
  for (size_t i = 0; i < kRequestsPerPass && accesses < kAccessesPerPass; ++i) {
    if (state_.UnitsLeft(session) == 0) break;
    const ipc::Take take = session.NextRequest(&request);
    if (take == ipc::Take::kEmpty) break;
    busy = true;
    if (take == ipc::Take::kCorrupt) {
      sessions_.Expel(session, "the request ring of this client is corrupt");
      break;
    }
    state_.Spend(session, 1);
    // What its client logged before it asked, which may be later than the look at the log above.
    accesses += logs_.ReadEntries(session, kAccessesPerPass);
    requests_.Handle(session, request);
    actions_.Execute();
    if (session.faulty) break;
  }
  if (busy) session.last_active = state_.now;
  return busy;
}

Duration Loop::SleepBound() {
  const core::Tick now = state_.now;
  const core::Tick copies = state_.store->NextPump(now + poll_);
  if (copies <= now + poll_) return std::max(copies - now, Duration(0));
  const bool waiting = store().stats().waiting > 0;
  const core::Tick next = std::min({copies, state_.store->NextWake(), departed_.NextWake(),
                                    pinned().NextWake(), harvests_.NextWake()});
  Duration bound = next == core::kNever ? Duration::max() : std::max(next - now, Duration(0));
  if (!waits_.empty() || pinned().awaits_tickets()) {
    bound = std::min(bound, waiting ? poll_ : backoff_);
    backoff_ = std::min(backoff_ * 2, kBackoffMax);
  }
  if (!recorders_.empty()) return std::min(bound, poll_);
  return waiting || sessions_.HasWarm() ? std::min(bound, AccessLogs::kWarmPoll) : bound;
}

void Loop::Sleep() {
  if (!sessions_.CoolDownAll()) return;
  if (const Duration bound = SleepBound(); bound > Duration(0)) sessions_.Wait(bound);
  logs_.ReadCold();
}

void Loop::LookAtDevices(const std::vector<MemoryWatch::Seen>& seen) {
  pools_.Pace(seen);
  harvests_.Look(seen);
  actions_.Execute();
}

core::Status Loop::ReturnHarvest(core::DeviceId device, core::Bytes bytes, Duration within,
                                 Harvest::Then then) {
  RAVEN_RETURN_IF_ERROR(harvests_.Return(device, bytes, within, std::move(then)));
  actions_.Execute();
  return core::Ok();
}

void Loop::Attach(std::shared_ptr<Attachment> attachment) {
  const core::ClientAttached event{attachment->id, attachment->tenant, attachment->budgets};
  sessions_.Add(std::move(attachment));
  Apply(event);
}

void Loop::Detach(ClientId client, std::function<void()> done) {
  Session* session = sessions_.Find(client);
  if (session == nullptr) {
    if (done) done();
    return;
  }
  if (session->departed) return;
  sealed_.Forget(client);
  sessions_.Leave(*session);
  departed_.Add(client, std::move(done));
  pinned().RemoveClient(client);
  Apply(core::ClientRemoved{client});
  departed_.Release();
}

void Loop::Trim(ClientId client) {
  Apply(core::Trimmed{client});
  if (Session* session = sessions_.Find(client)) pinned().ReleaseIdle(session->attachment().tenant);
}

core::Status Loop::KeepInPlace(ClientId client, core::SlotId slot, core::TensorId tensor,
                               Keeping keeping) {
  if (sessions_.FindPresent(client) == nullptr)
    return core::Error{core::ErrorCode::kNotFound, "the client is gone"};
  logs_.ReadOf(client);  // it may have the get
  const bool is_there = ToInt(slot) < proto::kSlotCapacity && tensor != core::kNoTensor &&
                        store().Find(client, slot) == tensor;
  if (!is_there) return core::Error{core::ErrorCode::kNotFound, "there is no such tensor"};
  return state_.store->KeepInPlace(client, slot, keeping);
}

void Loop::PutToSleep(ClientId client, core::Tick deadline, Sleepers::Reply reply) {
  if (sessions_.FindPresent(client) == nullptr)
    return reply(core::Error{core::ErrorCode::kNotFound, "the client is gone"});
  logs_.ReadOf(client);  // it may have the puts
  state_.store->sleepers().Sleep(client, deadline, std::move(reply));
}

void Loop::WakeUp(ClientId client) {
  if (sessions_.FindPresent(client) != nullptr) state_.store->sleepers().Wake(client);
}

void Loop::PinnedAlloc(ClientId client, Pinned::Ask ask) {
  Session* session = sessions_.FindPresent(client);
  if (session == nullptr)
    return ask.reply(core::Error{core::ErrorCode::kNotFound, "the client is gone"});
  // Frees that it sent before are in its ring still. The allocation waits for those that one pass
  // does not read.
  PollSession(*session);
  // The room of copies that its frees end is there after the store's next look.
  state_.store->Poll(state_.now, &state_.plan);
  actions_.Execute();
  pinned().Alloc(session->shared(), std::move(ask));
}

void Loop::PinnedSlabReleased(ClientId client, core::PinnedSlabId slab) {
  if (!pinned().SlabReleased(client, slab)) sessions_.CountBadRequest();
}

bool Loop::Quiescent() const {
  return !state_.store->IsCopying() && store().stats().waiting == 0;
}

}  // namespace ravenstore::daemon
