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

// Moves under way in each direction: one is copied, the next is there when that ends, and one is
// mapped.
constexpr size_t kMoves = 3;
// While moves are under way, or what should move may not yet, it looks again this often.
constexpr std::chrono::microseconds kPoll{100};
constexpr std::chrono::microseconds kRetry{200};
constexpr std::chrono::milliseconds kAskLimit{50};
// After a plan the thread rests for kPlanRest times its duration. Less: a job that does not repeat
// itself takes a CPU for plans. More: one that does follows an old plan for longer.
constexpr int kPlanRest = 2;
// What lies where is shown so often; so many ranges are looked at before others get the lock.
constexpr std::chrono::seconds kShow{1};
constexpr size_t kShownAtOnce = 256;

}  // namespace

Status Engine::StartThreads() {
  RAVEN_ASSIGN_OR_RETURN(mover_, Mover::Create(&driver_, parts_.get(), context_,
                                               [this](const auto& move, const auto& replaced) {
                                                 EndMove(move, replaced);
                                               }));
  pinner_ = std::make_unique<Pinner>(&driver_, parts_.get(), context_, options_.part);
  thread_ = OwnThread("raven-elastic", &driver_, context_, [this] { Run(); });
  plan_thread_ = OwnThread("raven-plan", &driver_, context_, [this] { MakePlans(); });
  return core::Ok();
}

// What ends moves needs all the rest: who begins any goes first, then they.
Engine::~Engine() {
  {
    const Lock lock(mutex_);
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
  Lock lock(mutex_);
  while (!stopping_) {
    AskLimit(lock);
    Show(lock);
    streams_.Look();
    Measure();
    PollSearches();
    if (streams_.saw_illegal_address()) TellOfIllegalAddress();
    bool moved = false;
    if (!stopping_ && !broken_) {
      starting_ = true;
      moved = StartMoves(lock);
      starting_ = false;
      ++moves_ended_;
      if (waiting_ > 0) changed_.notify_all();
    }
    if (moved) continue;
    asleep_ = !AnyUnderWay() && !HasWork();
    if (asleep_ && !options_.limit && !options_.shown) {
      wake_.wait(lock);
    } else if (asleep_) {
      wake_.wait_for(lock, kAskLimit);
    } else {
      wake_.wait_for(lock, AnyUnderWay() ? kPoll : kRetry);
    }
    asleep_ = false;
  }
}

void Engine::MakePlans() {
  Lock lock(mutex_);
  while (true) {
    plan_due_.wait(lock, [this] { return stopping_ || (plan_.NeedsPlan() && !broken_); });
    if (stopping_) return;
    const core::Tick began = ipc::Now();
    KernelForecast made = plan_.Copy();
    lock.unlock();
    made.Make();
    lock.lock();
    plan_.Set(&made);
    wake_.notify_one();
    lock.unlock();
    made = KernelForecast();
    lock.lock();
    plan_due_.wait_for(lock, (ipc::Now() - began) * kPlanRest, [this] { return stopping_; });
  }
}

void Engine::AskLimit(Lock& lock) {
  const core::Tick now = ipc::Now();
  if (!options_.limit || now - limit_asked_ < kAskLimit) return;
  limit_asked_ = now;
  lock.unlock();
  const Bytes most = options_.limit();
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
    view.Add({range.begin, range.size, AwayOf(range), range.calls, range.allocated, range.used,
              range.pinned});
  }
  proto::ElasticPageRow& row = view.row();
  row.limit = parts_->limit(Place::kDevice).count();
  row.device = parts_->held(Place::kDevice).count();
  row.host = parts_->held(Place::kHost).count();
  row.host_limit = parts_->limit(Place::kHost).count();
  row.live = stats_.live.count();
  row.away = stats_.away.count();
  row.pinned = stats_.pinned.count();
  row.peak = stats_.peak.count();
  row.enough = stats_.enough.count();
  row.moved_in = stats_.moved_in.count();
  row.moved_out = stats_.moved_out.count();
  row.dropped = stats_.dropped.count();
  row.uses = stats_.uses;
  row.in_place = stats_.uses_in_place;
  row.in_place_bytes = stats_.bytes_in_place.count();
  row.waits = stats_.waits;
  row.waited_ns = static_cast<uint64_t>(stats_.waited.count());
  row.room_waits = stats_.room_waits;
  row.room_waited_ns = static_cast<uint64_t>(stats_.room_waited.count());
  row.learned = plan_.IsLearned() ? 1 : 0;
  row.broken = broken_ ? 1 : 0;
  options_.shown->AddCalls(&view);
  lock.unlock();
  options_.shown->Publish(view);
  lock.lock();
}

// Other threads do not ask the driver: they may be capturing, which that would break.
void Engine::Measure() {
  while (const auto stretch = pace_.Next()) {
    plan_.times().Took(stretch->from, stretch->to, stretch->took);
    if (pacing_ > 0) changed_.notify_all();
  }
}

bool Engine::WantsAny() {
  const auto nothing = [](PageId) { return false; };
  return !broken_ && (plan_.NextIn(nothing) || plan_.NextOut(nothing));
}

bool Engine::HasWork() {
  const bool over = parts_->held(Place::kDevice) > parts_->limit(Place::kDevice);
  const bool moves = !broken_ && (wanted_ > Bytes{0} || over || pacing_ > 0 || WantsAny());
  return moves || tables_.AnyUnderWay();
}

bool Engine::StartMoves(Lock& lock) {
  const bool over = parts_->held(Place::kDevice) > parts_->limit(Place::kDevice);
  const bool wanted = wanted_ > MovesTo(Place::kHost).bytes;
  if ((over || wanted) && DropDead(Place::kDevice, lock)) return true;
  auto leaves = over ? plan_.Surplus(CannotLeave()) : plan_.NextOut(CannotLeave());
  if (!leaves && wanted) leaves = plan_.Victim(CannotLeave());
  if (leaves && StartOut(*leaves, lock)) return true;
  if (over || wanted_ > Bytes{0}) return false;
  const auto next = plan_.NextIn(CannotCome());
  return next && StartIn(*next, lock);
}

bool Engine::StartIn(const Plan::Wanted& wanted, Lock& lock) {
  if (MovesTo(Place::kDevice).count >= kMoves) return false;
  if (wanted.dead) return DropPart(*wanted.dead, lock), true;
  Page& page = At(wanted.page);
  ++page.busy;
  const auto part = TakePart(Place::kDevice, page.size, lock);
  --page.busy;
  // No page leaves for one that is dead until then: an allocation finds room by itself.
  if (!part.ok()) return wanted.needs_copy && DropDead(Place::kDevice, lock);
  if (!CanMove(page) || !page.away()) {  // it was named meanwhile, or backed
    parts_->Give(*part);
    return true;
  }
  StartMove(wanted.page, *part);
  return true;
}

// REQUIRES: CanMove.
bool Engine::StartOut(PageId id, Lock& lock) {
  Page& page = At(id);
  if (page.away()) return false;
  if (!page.live()) return DropPart(id, lock), true;
  if (MovesTo(Place::kHost).count >= kMoves) return false;
  ++page.busy;
  const auto part = TakeHostPart(page.size, lock);
  --page.busy;
  if (!part.ok()) return false;
  if (!CanMove(page) || !page.live() || page.away()) {
    parts_->Give(*part);
    return true;
  }
  StartMove(id, *part);
  return true;
}

// What is dead, or never was written, is not copied. REQUIRES: CanMove.
void Engine::StartMove(PageId id, Part* to) {
  Page& page = At(id);
  BeginMoving(page);
  plan_.BeginMove(id);
  ++MovesTo(to->place).count;
  MovesTo(to->place).bytes += page.size;
  const bool maps = to->place == Place::kDevice || MapsAway(page);
  mover_->Begin({id, page.begin, page.there(), to, maps, page.live() && page.part != nullptr});
}

void Engine::EndMove(const Mover::Move& move, const Parts::Replaced& replaced) {
  const Lock lock(mutex_);
  Page& page = At(move.page);
  const Place to = page.away() ? Place::kDevice : Place::kHost;
  --MovesTo(to).count;
  MovesTo(to).bytes -= page.size;
  EndMoving(page);
  changed_.notify_all();
  wake_.notify_one();
  SetPart(move.page, replaced.there);
  plan_.SetResident(move.page, !page.away());
  if (!replaced.status.ok()) return Fail("a part could not be moved", replaced.status.error());
  if (move.copies) (to == Place::kDevice ? stats_.moved_in : stats_.moved_out) += page.size;
}

void Engine::NoteIllegalAddress() {
  const Lock lock(mutex_);
  TellOfIllegalAddress();
}

void Engine::TellOfIllegalAddress() {
  if (maps_away_ || !options_.log || std::exchange(illegal_told_, true)) return;
  options_.log(
      "an illegal address was met: a kernel may have reached memory that it did not name, and that "
      "lay on the host. RAVENSTORE_ELASTIC_AWAY=mapped keeps all memory reachable");
}

void Engine::Fail(const char* what, const Error& error) {
  if (std::exchange(broken_, true) || !options_.log) return;
  options_.log(
      (std::string(what) + ", and nothing moves any more: " + core::Describe(error)).c_str());
}

}  // namespace ravenstore::elastic
