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
constexpr std::chrono::microseconds kPoll{50};
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
    const Range& range = *ranges_[i];
    if (!range.live) continue;
    view.Add({range.begin, range.size, range.away, range.calls, range.allocated, range.used,
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
  row.enough = std::max(stats_.enough, stats_.peak).count();
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

bool Engine::WantsAny() const {
  return !broken_ && plan_.NextIn([](RangeId) { return false; }).has_value();
}

bool Engine::HasWork() const {
  const bool over = parts_->held(Place::kDevice) > parts_->limit(Place::kDevice);
  return !broken_ && (wanted_ > Bytes{0} || over || WantsAny());
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
    changed_.notify_all();
    any = true;
  }
  return any;
}

void Engine::FinishMove(const Move& move, bool copied, Lock& lock) {
  Range& range = At(move.range);
  Part* const from = range.slots[move.slot].part;
  const CUdeviceptr address = SlotAddress(range, move.slot);
  Part* now = from;
  lock.unlock();
  Status status = copied ? core::Ok() : DriverError("a copy", CUDA_ERROR_UNKNOWN);
  if (status.ok() && from != nullptr) status = parts_->Unmap(address, *from);
  if (status.ok()) {
    status = parts_->Map(address, *move.to);
    if (status.ok()) {
      now = move.to;
    } else if (from != nullptr && !parts_->Map(address, *from).ok()) {
      now = nullptr;
    }
  }
  const bool came = move.to->place == Place::kDevice;
  if (now != move.to) parts_->Give(move.to);
  if (now != from && from != nullptr) parts_->Give(from);
  lock.lock();
  EndMoving(range, move.slot);
  SetPart(move.range, move.slot, now);
  if (!status.ok()) return Fail("a part could not be moved", status.error());
  if (!move.copies) return;
  const Bytes size = SlotSize(range, move.slot);
  (came ? stats_.moved_in : stats_.moved_out) += size;
}

bool Engine::StartMoves(Lock& lock) {
  const bool over = parts_->held(Place::kDevice) > parts_->limit(Place::kDevice);
  if (over || wanted_ > Leaving()) {
    if (DropDead(Place::kDevice, lock)) return true;
    const auto victim =
        over ? plan_.Surplus(CannotMove()) : plan_.Victim(std::nullopt, CannotMove());
    if (victim && StartOut(*victim, lock)) return true;
  }
  if (over || wanted_ > Bytes{0}) return false;
  const auto next = plan_.NextIn(CannotMove());
  return next && StartIn(*next, lock);
}

bool Engine::StartIn(const Plan::Wanted& wanted, Lock& lock) {
  if (MovesTo(Place::kDevice) >= kLanes) return false;
  Range& range = At(wanted.range);
  const auto away = std::find_if(range.slots.begin(), range.slots.end(),
                                 [](const Slot& slot) { return slot.away(); });
  if (away == range.slots.end()) return false;
  const auto slot = static_cast<size_t>(away - range.slots.begin());
  const auto take = [&] {
    ++range.busy;
    auto taken = TakePart(Place::kDevice, SlotSize(range, slot), lock);
    --range.busy;
    return taken;
  };
  auto part = take();
  if (!part.ok()) {
    // For what is dead until then nothing leaves: an allocation finds room by itself.
    if (!wanted.needs_copy) return false;
    const auto victim = plan_.Victim(wanted, CannotMove());
    if (!victim || !StartOut(*victim, lock)) return false;
    part = take();  // what was dead has left at once
    if (!part.ok()) return true;
  }
  if (!CanMove(range)) {  // it was named meanwhile
    parts_->Give(*part);
    return true;
  }
  return StartCopy(wanted.range, slot, *part, lock);
}

// REQUIRES: CanMove.
bool Engine::StartOut(RangeId id, Lock& lock) {
  Range& range = At(id);
  const auto there = std::find_if(range.slots.rbegin(), range.slots.rend(),
                                  [](const Slot& slot) { return !slot.away(); });
  if (there == range.slots.rend()) return false;
  const auto slot = static_cast<size_t>(range.slots.rend() - there) - 1;
  if (!range.live) return DropSlot(id, slot, lock), true;
  if (MovesTo(Place::kHost) >= kLanes) return false;
  ++range.busy;
  const auto part = TakeHostPart(SlotSize(range, slot), lock);
  --range.busy;
  if (!part.ok()) return false;
  if (!CanMove(range) || !range.live) {
    parts_->Give(*part);
    return true;
  }
  return StartCopy(id, slot, *part, lock);
}

// What is dead, or never was written, is not copied: its event is recorded at once.
bool Engine::StartCopy(RangeId id, size_t slot, Part* to, Lock& lock) {
  Range& range = At(id);
  const Part* const from = range.slots[slot].part;
  const CUstream stream = to->place == Place::kHost ? out_ : in_;
  BeginMoving(range, slot);
  const bool copies = range.live && from != nullptr;
  CUevent done = nullptr;
  if (!events_.empty()) {
    done = events_.back();
    events_.pop_back();
  }
  lock.unlock();
  CUresult result = CUDA_SUCCESS;
  if (done == nullptr) result = driver_.event_create(&done, CU_EVENT_DISABLE_TIMING);
  if (result == CUDA_SUCCESS && copies)
    result = driver_.copy_async(to->copy, from->copy, to->size.count(), stream);
  if (result == CUDA_SUCCESS) result = driver_.event_record(done, stream);
  lock.lock();
  if (result == CUDA_SUCCESS) {
    moves_.push_back({id, slot, to, copies, done});
    return true;
  }
  EndMoving(range, slot);
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
