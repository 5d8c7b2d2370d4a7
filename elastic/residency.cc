#include "elastic/residency.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "ipc/clock.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::Error;
using core::Result;

namespace {

// Host parts beyond those that hold data: they back moves of both directions that are under way.
constexpr uint64_t kPartsAhead = 8;

// At most 1/kAheadShare of the pinnable host memory is pinned before a page has to leave. A pause,
// and the first steps that do not fit, then need not pin. Lower: jobs that start one after another
// leave no host memory to the last one. Higher: more of a pause is pinned while it runs.
constexpr uint64_t kAheadShare = 2;

// How long the device is taken to have no more parts than are held, after it had none left.
constexpr std::chrono::milliseconds kShortage{50};

}  // namespace

Residency::Residency(const EngineOptions& options, const Uses& uses)
    : options_(options),
      parts_(*uses.parts),
      memory_(*uses.memory),
      segments_(*uses.segments),
      streams_(*uses.streams),
      ranges_(*uses.ranges),
      clock_(*uses.clock),
      broken_(!options.moves) {
  if (broken_) memory_.Stop();
}

bool Residency::SeeCalls() {
  memory_.open().TakeLog(&seen_);
  // A thread maps pages whose ranges may be freed.
  if (reaching_ == 0) memory_.calls().TakePassed();
  bool passed = false;
  {
    const BothLocks::WithoutCalls without(&locks_);
    memory_.calls().See(&seen_);
    passed = memory_.calls().EndPassed();
  }
  ranges_.Recycle(&removed_);
  return passed;
}

void Residency::Advance() {
  const bool passed = SeeCalls();
  memory_.pages().mode().frozen = IsFrozen() || reaching_ > 0;
  bool reported = false;
  std::optional<Error> failure;
  {
    const int64_t call = clock_.next();
    const BothLocks::WithoutCalls without(&locks_);
    reported = memory_.pages().Report();
    memory_.Advance(call);
    failure = memory_.pages().TakeFailure();
    if (failure && failure->code == core::ErrorCode::kOutOfMemory) {
      short_until_ = ipc::Now() + kShortage;
      SetPages();
      memory_.Advance(call);
      failure.reset();
    }
  }
  if (failure) Fail("a part could not be moved", *failure);
  is_short_ = memory_.IsShort();
  is_all_there_ = !is_short_ && !memory_.IsAnyAway();
  if (reported || passed) NotifyChanged();
}

void Residency::AwaitChange(core::Duration most, Lock& lock) {
  WakeEngine();
  changed_.wait_for(lock, most);
}

void Residency::SetPages() {
  const Bytes ranges = core::Minus(parts_.limit(Place::kDevice), segments_.on_device());
  uint64_t pages = ranges.count() / options_.part.count();
  if (short_until_ != core::Tick{})
    pages = std::min(pages, memory_.pages().held().count() / options_.part.count());
  memory_.SetDevice(static_cast<uint32_t>(std::min<uint64_t>(pages, UINT32_MAX)));
}

void Residency::EndShortage() {
  if (short_until_ == core::Tick{} || ipc::Now() < short_until_) return;
  short_until_ = {};
  SetPages();
}

Result<Part*> Residency::TakePart(Place place, Bytes size, Lock& lock) {
  lock.unlock();
  auto taken = parts_.Take(place, size);
  lock.lock();
  return taken;
}

void Residency::PinFor(Bytes live) {
  const Bytes most = parts_.limit(Place::kDevice);
  pinner_->Want(std::min(live, Bytes(parts_.limit(Place::kHost).count() / kAheadShare)));
  if (live > most) pinner_->Need(live - most + options_.part * kPartsAhead);
}

void Residency::Fail(const char* what, const Error& error) {
  if (std::exchange(broken_, true)) return;
  memory_.Stop();
  if (!options_.log) return;
  options_.log(
      (std::string(what) + ", and nothing moves any more: " + core::Describe(error)).c_str());
}

void Residency::EndUnknown(const Point* point) {
  --unknowns_;
  if (point != nullptr) NoteLast(&unknown_uses_, *point);
}

void Residency::Sleep(core::Duration most, bool idle, Lock& lock) {
  asleep_ = idle;
  wake_.wait_for(lock, most);
  asleep_ = false;
}

void Residency::NotifyEnded() {
  const std::lock_guard lock(locks_.calls());
  changed_.notify_all();
  wake_.notify_one();
}

}  // namespace ravenstore::elastic
