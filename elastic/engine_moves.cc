// The engine's thread, which decides what is moved, and when; and what becomes of that.
#include <algorithm>
#include <string>
#include <utility>

#include "elastic/engine.h"
#include "elastic/own_thread.h"
#include "ipc/clock.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::Error;
using core::Status;

namespace {

// While moves are under way, or what should move may not yet, it looks again this often.
constexpr std::chrono::microseconds kPoll{100};
constexpr std::chrono::microseconds kRetry{200};
constexpr std::chrono::milliseconds kAskLimit{50};
// The same while other engines share the device: they wait for what this one does not need.
constexpr core::Duration kAskShare = std::chrono::milliseconds(1);
// After a plan the thread rests for kPlanRest times its duration. Less: a job that does not repeat
// itself takes a CPU for plans. More: one that does follows an old plan for longer.
constexpr int kPlanRest = 2;
// How often Show() publishes, and how many ranges it looks at before it yields the lock.
constexpr std::chrono::seconds kShow{1};
constexpr size_t kShownAtOnce = 256;

core::Duration AskAfter(const JobShare& share) {
  return share.is_shared() ? kAskShare : core::Duration(kAskLimit);
}

}  // namespace

Status Engine::StartThreads() {
  RAVEN_ASSIGN_OR_RETURN(mover_, Mover::Create(&driver_, parts_.get(), context_,
                                               [this](const auto& move, const auto& replaced) {
                                                 EndMove(move, replaced);
                                               }));
  memory_->pages().SetMover(mover_.get());
  pinner_ = std::make_unique<Pinner>(&driver_, parts_.get(), context_, options_.part);
  thread_ = OwnThread("raven-elastic", &driver_, context_, [this] { Run(); });
  plan_thread_ = OwnThread("raven-plan", &driver_, context_, [this] { MakePlans(); });
  return core::Ok();
}

// What ends moves needs all the rest: who begins any goes first, then they.
Engine::~Engine() {
  {
    const Lock lock(locks_);
    stopping_ = true;
    wake_.notify_one();
    plan_due_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  if (plan_thread_.joinable()) plan_thread_.join();
  mover_.reset();
  pinner_.reset();
}

void Engine::Run() {
  Lock lock(locks_);
  while (!stopping_) {
    AskLimit(lock);
    Show(lock);
    Look();
    if (streams_.saw_illegal_address()) TellOfIllegalAddress();
    if (short_until_ != core::Tick{} && ipc::Now() >= short_until_) {
      short_until_ = {};
      SetPages();
    }
    Advance();
    if (!stopping_ && !broken_ && (TakeHostPart(lock) || StartSegment(lock))) continue;
    asleep_ = !HasWork();
    wake_.wait_for(lock, asleep_                                         ? AskAfter(job_share_)
                         : memory_->IsQuiet() && segments_.moving() == 0 ? core::Duration(kRetry)
                                                                         : core::Duration(kPoll));
    asleep_ = false;
  }
}

bool Engine::SeeCalls() {
  open_->TakeLog(&seen_);
  // A thread maps pages whose ranges may be freed.
  if (reaching_ == 0) memory_->calls().TakePassed();
  bool passed = false;
  {
    const BothLocks::WithoutCalls without(&locks_);
    memory_->calls().See(&seen_);
    passed = memory_->calls().EndPassed();
  }
  unused_ranges_.insert(unused_ranges_.end(), removed_ranges_.begin(), removed_ranges_.end());
  removed_ranges_.clear();
  return passed;
}

void Engine::Advance() {
  const bool passed = SeeCalls();
  memory_->pages().mode().frozen = IsFrozen() || reaching_ > 0;
  bool reported = false;
  std::optional<Error> failure;
  {
    const int64_t call = calls_;
    const BothLocks::WithoutCalls without(&locks_);
    reported = memory_->pages().Report();
    memory_->Advance(call);
    failure = memory_->pages().TakeFailure();
    if (failure && failure->code == core::ErrorCode::kOutOfMemory) {
      short_until_ = ipc::Now() + kAskLimit;
      SetPages();
      memory_->Advance(call);
      failure.reset();
    }
  }
  if (failure) Fail("a part could not be moved", *failure);
  is_short_ = memory_->IsShort();
  is_all_there_ = !is_short_ && !memory_->IsAnyAway();
  if (reported || passed) changed_.notify_all();
}

void Engine::AwaitChange(core::Duration most, Lock& lock) {
  wake_.notify_one();
  changed_.wait_for(lock, most);
}

// Pinning takes milliseconds: not on a thread that calls wait for.
bool Engine::TakeHostPart(Lock& lock) {
  if (!memory_->pages().WantsHostPart()) return false;
  const auto part = TakePart(Place::kHost, options_.part, lock);
  if (part.ok()) {
    memory_->pages().GiveHostPart(*part);
    return true;
  }
  if (memory_->books().copies().pools().redundant(0) == Bytes{0}) return false;
  memory_->DropCopies(options_.part);
  return true;
}

void Engine::SetPages() {
  const Bytes ranges = core::Minus(parts_->limit(Place::kDevice), segments_.on_device());
  uint64_t pages = ranges.count() / options_.part.count();
  if (short_until_ != core::Tick{})
    pages = std::min(pages, memory_->pages().held().count() / options_.part.count());
  memory_->SetDevice(static_cast<uint32_t>(std::min<uint64_t>(pages, UINT32_MAX)));
}

void Engine::MakePlans() {
  Lock lock(locks_);
  while (true) {
    plan_due_.wait(lock, [this] { return stopping_ || memory_->HasPlanWork(); });
    if (stopping_) return;
    const core::Tick began = ipc::Now();
    const std::shared_ptr<core::PlanWork> work = memory_->TakePlanWork();
    lock.unlock();
    work->Make();
    lock.lock();
    {
      const BothLocks::WithoutCalls without(&locks_);
      memory_->PlanMade(work);
    }
    wake_.notify_one();
    plan_due_.wait_for(lock, (ipc::Now() - began) * kPlanRest, [this] { return stopping_; });
  }
}

void Engine::AskLimit(Lock& lock) {
  const core::Tick now = ipc::Now();
  if (!options_.limit || now - limit_asked_ < AskAfter(job_share_)) return;
  limit_asked_ = now;
  const JobShare::Demand demand =
      memory_->Demand({.segments = segments_.on_device(), .held = parts_->held(Place::kDevice)});
  lock.unlock();
  const auto device = options_.share ? options_.share(demand) : std::nullopt;
  const Bytes most = job_share_.Of(device, options_.limit(), now - core::Tick{});
  const Bytes before = parts_->limit(Place::kDevice);
  // Less than a part more makes no difference.
  if (most < before || most - before >= options_.part) SetDeviceLimit(most);
  lock.lock();
}

void Engine::Show(Lock& lock) {
  const core::Tick now = ipc::Now();
  if (!options_.shown || now - shown_ < kShow) return;
  shown_ = now;
  Shown::View view(now);
  for (size_t i = 1; i < ranges_.size(); ++i) {
    if (i % kShownAtOnce == 0) {
      lock.unlock();
      lock.lock();
    }
    const Range& range = ranges_[i];
    if (!range.live) continue;
    view.Add({range.begin, range.size, AwayOf(static_cast<uint32_t>(i)), range.calls,
              range.allocated, range.used, range.pinned});
  }
  const JobPages::Stats& moved = memory_->pages().stats();
  proto::ElasticPageRow& row = view.row();
  row.limit = parts_->limit(Place::kDevice).count();
  row.device = parts_->held(Place::kDevice).count();
  row.host = parts_->held(Place::kHost).count();
  row.host_limit = parts_->limit(Place::kHost).count();
  row.live = stats_.live.count();
  row.away = (memory_->Away() + segments_.away()).count();
  row.pinned = stats_.pinned.count();
  row.peak = stats_.peak.count();
  row.enough = stats_.enough.count();
  row.moved_in = (stats_.moved_in + moved.moved_in).count();
  row.moved_out = (stats_.moved_out + moved.moved_out).count();
  row.dropped = (stats_.dropped + moved.dropped).count();
  row.uses = stats_.uses;
  row.in_place = stats_.uses_in_place;
  row.in_place_bytes = stats_.bytes_in_place.count();
  row.waits = stats_.waits;
  row.waited_ns = static_cast<uint64_t>(stats_.waited.count());
  row.room_waits = stats_.room_waits;
  row.room_waited_ns = static_cast<uint64_t>(stats_.room_waited.count());
  row.learned = memory_->IsLearned() ? 1 : 0;
  row.broken = broken_ ? 1 : 0;
  options_.shown->AddCalls(&view);
  lock.unlock();
  options_.shown->Publish(view);
  lock.lock();
}

// Other threads do not ask the driver: they may be capturing, which that would break. The queries
// run next to the job's own driver calls: where all fits, they are made only now and then.
void Engine::Look() {
  const bool waits = !is_all_there_ || segments_.moving() > 0 || pacing_ > 0 ||
                     tables_.AnyUnderWay() || unknowns_ > 0 || !memory_->IsQuiet();
  const core::Tick now = ipc::Now();
  if (!waits && now - looked_ < kAskLimit) return;
  looked_ = now;
  streams_.Look();
  while (const auto stretch = pace_.Next()) {
    times_.Took(stretch->from, stretch->to, stretch->took);
    if (pacing_ > 0) changed_.notify_all();
  }
  PollSearches();
}

bool Engine::HasWork() {
  if (!memory_->IsQuiet() || segments_.moving() > 0 || pacing_ > 0 || tables_.AnyUnderWay())
    return true;
  if (broken_) return false;
  const bool over = parts_->held(Place::kDevice) > parts_->limit(Place::kDevice);
  const bool any_ends = open_->logged() > 0 || memory_->calls().HasEnds();
  const bool waits = any_ends && (memory_->IsShort() || memory_->IsAnyAway());
  return waits || over || segments_.wanted() > Bytes{0} || NextSegment().has_value();
}

void Engine::NoteIllegalAddress() {
  const Lock lock(locks_);
  TellOfIllegalAddress();
}

void Engine::TellOfIllegalAddress() {
  if (maps_away_ || !options_.log || std::exchange(illegal_told_, true)) return;
  options_.log(
      "an illegal address was met: a kernel may have reached memory that it did not name, and that "
      "lay on the host. RAVENSTORE_ELASTIC_AWAY=mapped keeps all memory reachable");
}

void Engine::Fail(const char* what, const Error& error) {
  if (std::exchange(broken_, true)) return;
  memory_->Stop();
  if (!options_.log) return;
  options_.log(
      (std::string(what) + ", and nothing moves any more: " + core::Describe(error)).c_str());
}

}  // namespace ravenstore::elastic
