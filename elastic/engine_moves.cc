// The engine's thread: what is moved, and when.
#include <algorithm>
#include <string>
#include <utility>

#include "elastic/engine.h"
#include "ipc/clock.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::Error;
using core::Status;

namespace {

// Copies under way in each direction: one runs, and the next is there when it ends.
constexpr size_t kLanes = 2;
// While copies run, or what should move may not yet, it looks again this often.
constexpr std::chrono::microseconds kPoll{100};
constexpr std::chrono::microseconds kRetry{200};
constexpr std::chrono::milliseconds kAskLimit{50};
// What lies where is shown so often; so many ranges are looked at before others get the lock.
constexpr std::chrono::seconds kShow{1};
constexpr size_t kShownAtOnce = 256;

}  // namespace

Engine::~Engine() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Engine::Run() {
  driver_.ctx_set_current(context_);
  // None of this thread's calls shall break a capture of the job's.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver_.exchange_mode(&mode);
  Lock lock(mutex_);
  while (!stopping_ || !moves_.empty()) {
    AskLimit(lock);
    Show(lock);
    streams_.Look();
    Measure();
    bool moved = FinishMoves(lock);
    if (!stopping_ && !broken_) {
      starting_ = true;
      moved |= StartMoves(lock);
      starting_ = false;
      ++moves_ended_;
      if (waiting_ > 0) changed_.notify_all();
    }
    if (moved) continue;
    asleep_ = moves_.empty() && !HasWork();
    if (asleep_ && !options_.limit && !options_.shown) {
      wake_.wait(lock);
    } else if (asleep_) {
      wake_.wait_for(lock, kAskLimit);
    } else {
      wake_.wait_for(lock, moves_.empty() ? kRetry : kPoll);
    }
    asleep_ = false;
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
    plan_.Took(stretch->from, stretch->to, stretch->took);
    if (pacing_ > 0) changed_.notify_all();
  }
  if (driver_.elapsed != nullptr) plan_.SetPassed(pace_.passed());
}

bool Engine::WantsAny() const {
  const auto nothing = [](PageId) { return false; };
  return !broken_ && (plan_.NextIn(nothing) || plan_.NextOut(nothing));
}

bool Engine::HasWork() const {
  const bool over = parts_->held(Place::kDevice) > parts_->limit(Place::kDevice);
  return !broken_ &&
         (wanted_ > Bytes{0} || over || pacing_ > 0 || !demanded_.empty() || WantsAny());
}

size_t Engine::MovesTo(Place place) const {
  return static_cast<size_t>(std::count_if(
      moves_.begin(), moves_.end(), [&](const Move& move) { return move.to->place == place; }));
}

Bytes Engine::Leaving() const {
  Bytes leaving;
  for (const Move& move : moves_) {
    if (move.to->place == Place::kHost) leaving += move.to->size;
  }
  return leaving;
}

bool Engine::FinishMoves(Lock& lock) {
  bool any = false;
  for (size_t i = 0; i < moves_.size();) {
    const CUresult result = driver_.event_query(moves_[i].done);
    if (result == CUDA_ERROR_NOT_READY) {
      ++i;
      continue;
    }
    const Move move = moves_[i];
    FinishMove(move, result == CUDA_SUCCESS, lock);
    std::erase_if(moves_, [&](const Move& other) { return other.done == move.done; });
    events_.push_back(move.done);
    any = true;
  }
  return any;
}

void Engine::FinishMove(const Move& move, bool copied, Lock& lock) {
  Page& page = At(move.page);
  Part* const from = page.part;
  Part* now = from;
  lock.unlock();
  Status status = copied ? core::Ok() : DriverError("a copy", CUDA_ERROR_UNKNOWN);
  if (status.ok() && from != nullptr) status = parts_->Unmap(page.begin, *from);
  if (status.ok()) {
    status = parts_->Map(page.begin, *move.to);
    if (status.ok()) {
      now = move.to;
    } else if (from != nullptr && !parts_->Map(page.begin, *from).ok()) {
      now = nullptr;
    }
  }
  const bool came = move.to->place == Place::kDevice;
  if (now != move.to) parts_->Give(move.to);
  if (now != from && from != nullptr) parts_->Give(from);
  lock.lock();
  EndMoving(page);
  SetPart(move.page, now);
  changed_.notify_all();
  if (!status.ok()) return Fail("a part could not be moved", status.error());
  if (move.copies) (came ? stats_.moved_in : stats_.moved_out) += page.size;
}

bool Engine::StartMoves(Lock& lock) {
  const bool over = parts_->held(Place::kDevice) > parts_->limit(Place::kDevice);
  const bool wanted = wanted_ > Leaving();
  if ((over || wanted) && DropDead(Place::kDevice, lock)) return true;
  auto leaves = over ? plan_.Surplus(CannotLeave()) : plan_.NextOut(CannotLeave());
  if (!leaves && wanted) leaves = plan_.Victim(std::nullopt, CannotLeave());
  if (leaves && StartOut(*leaves, lock)) return true;
  if (over || wanted_ > Bytes{0}) return false;
  const auto next = NextIn();
  return next && StartIn(*next, lock);
}

std::optional<Plan::Wanted> Engine::NextIn() {
  for (const PageId id : demanded_) {
    if (At(id).live() && At(id).away() && CanMove(At(id)))
      return Plan::Wanted{id, plan_.position(), true};
  }
  return plan_.NextIn(CannotCome());
}

bool Engine::StartIn(const Plan::Wanted& wanted, Lock& lock) {
  if (MovesTo(Place::kDevice) >= kLanes) return false;
  Page& page = At(wanted.range);
  const auto take = [&] {
    ++page.busy;
    auto taken = TakePart(Place::kDevice, page.size, lock);
    --page.busy;
    return taken;
  };
  auto part = take();
  if (!part.ok()) {
    // For what is dead until then nothing leaves: an allocation finds room by itself.
    if (!wanted.needs_copy) return false;
    const auto victim = plan_.Victim(wanted, CannotLeave());
    if (!victim || !StartOut(*victim, lock)) return false;
    part = take();  // what was dead has left at once
    if (!part.ok()) return true;
  }
  if (!CanMove(page) || !page.away()) {  // it was named meanwhile, or backed
    parts_->Give(*part);
    return true;
  }
  return StartCopy(wanted.range, *part, lock);
}

// REQUIRES: CanMove.
bool Engine::StartOut(PageId id, Lock& lock) {
  Page& page = At(id);
  if (page.away()) return false;
  if (!page.live()) return DropPart(id, lock), true;
  if (MovesTo(Place::kHost) >= kLanes) return false;
  ++page.busy;
  const auto part = TakeHostPart(page.size, lock);
  --page.busy;
  if (!part.ok()) return false;
  if (!CanMove(page) || !page.live() || page.away()) {
    parts_->Give(*part);
    return true;
  }
  return StartCopy(id, *part, lock);
}

// What is dead, or never was written, is not copied, and is moved at once.
bool Engine::StartCopy(PageId id, Part* to, Lock& lock) {
  Page& page = At(id);
  const Part* const from = page.part;
  const CUstream stream = to->place == Place::kHost ? out_ : in_;
  BeginMoving(page);
  if (!page.live() || from == nullptr)
    return FinishMove({id, to, false, nullptr}, true, lock), true;
  CUevent done = nullptr;
  if (!events_.empty()) {
    done = events_.back();
    events_.pop_back();
  }
  lock.unlock();
  CUresult result = CUDA_SUCCESS;
  if (done == nullptr) result = driver_.event_create(&done, CU_EVENT_DISABLE_TIMING);
  if (result == CUDA_SUCCESS)
    result = driver_.copy_async(to->copy, from->copy, to->size.count(), stream);
  if (result == CUDA_SUCCESS) result = driver_.event_record(done, stream);
  lock.lock();
  if (result == CUDA_SUCCESS) {
    moves_.push_back({id, to, true, done});
    return true;
  }
  EndMoving(page);
  parts_->Give(to);
  if (done != nullptr) events_.push_back(done);
  Fail("a copy could not begin", DriverError("cuMemcpyAsync", result));
  changed_.notify_all();
  return false;
}

void Engine::Fail(const char* what, const Error& error) {
  if (std::exchange(broken_, true) || !options_.log) return;
  options_.log(
      (std::string(what) + ", and nothing moves any more: " + core::Describe(error)).c_str());
}

}  // namespace ravenstore::elastic
