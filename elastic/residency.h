// What of a job's memory is where, and the work that changes it: the scheduler's, which moves
// ranges, and the sums of what segments hold.
//
// Calls, allocations, segments and the engine's thread all wait for this work, and let it go on
// while they wait. A call that may touch anything freezes all moves until it has passed.
//
// Owns: the two locks, and the conditions under which threads wait for each other. Units: bytes.
// Threads: any, with the locks that a function names. The order of locks: the scheduler's, that of
// calls, a mover's or the pinner's, that of the parts. Errors: of a move, reported to the log once;
// then nothing moves any more.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "elastic/both_locks.h"
#include "elastic/call_clock.h"
#include "elastic/engine_options.h"
#include "elastic/job_memory.h"
#include "elastic/mover.h"
#include "elastic/parts.h"
#include "elastic/pinner.h"
#include "elastic/point.h"
#include "elastic/range_table.h"
#include "elastic/segment_table.h"
#include "elastic/streams.h"

namespace ravenstore::elastic {

class Residency {
 public:
  using Lock = std::unique_lock<BothLocks>;
  // How long a thread waits for a change before it looks again. Shorter: waiting threads take the
  // locks from calls. Longer: what streams have passed is seen late.
  static constexpr std::chrono::microseconds kLookAgain{100};

  // All that is pointed to, and `options`, outlives it.
  struct Uses {
    Parts* parts;
    JobMemory* memory;
    SegmentTable* segments;
    Streams* streams;
    RangeTable* ranges;
    const CallClock* clock;
  };
  Residency(const EngineOptions& options, const Uses& uses);
  // Before the first call of another thread.
  void SetPinner(Pinner* pinner) { pinner_ = pinner; }

  BothLocks& locks() { return locks_; }

  // ---- Work. With both locks.
  // Begins what there is to do, unless moves are frozen. Releases the lock of calls meanwhile.
  void Advance();
  // The scheduler sees what calls have done, and which ones streams have passed. As Advance().
  // Returns true if any have passed.
  bool SeeCalls();
  // The scheduler sees what calls have done. Keeps both locks.
  void SeeLog() {
    memory_.open().TakeLog(&seen_);
    memory_.calls().See(&seen_);
  }
  // Lets the engine's thread work, and waits for a change, or for that long.
  void AwaitChange(core::Duration most, Lock& lock);
  // Waits until the condition holds, which it asks after each change.
  template <typename Condition>
  void Await(Lock& lock, Condition condition) {
    changed_.wait(lock, condition);
  }
  // What the device may hold, less the segments' parts, is the ranges'.
  void SetPages();
  // The device had no part left although it may hold more. After a while it is tried again.
  void EndShortage();
  // As Parts::Take, without the lock.
  core::Result<Part*> TakePart(Place place, core::Bytes size, Lock& lock);
  // The host must hold the bytes that do not fit, or all of them if the job is to be paused.
  void PinFor(core::Bytes live);
  // Nothing moves any more. Logs why, the first time.
  void Fail(const char* what, const core::Error& error);
  bool broken() const { return broken_; }

  // ---- What the last Advance() found. With the lock of calls.
  // More pages live, or will live, than the device may hold.
  bool is_short() const { return is_short_; }
  // Nothing is away, and all fits.
  bool is_all_there() const { return is_all_there_; }

  // ---- Calls that may touch anything. With the lock of calls.
  void BeginUnknown() { ++unknowns_; }
  // `point`: behind which it was enqueued; null: it was not.
  void EndUnknown(const Point* point);
  bool AnyUnknown() const { return unknowns_ > 0; }
  // One has not passed: nothing moves.
  bool IsFrozen() { return unknowns_ > 0 || !streams_.HavePassed(&unknown_uses_); }

  // A thread maps pages that no call of its holds: nothing moves. With the lock of calls.
  class Reaching {
   public:
    explicit Reaching(Residency* residency) : residency_(residency) { ++residency_->reaching_; }
    ~Reaching() { --residency_->reaching_; }
    Reaching(const Reaching&) = delete;
    Reaching& operator=(const Reaching&) = delete;

   private:
    Residency* const residency_;
  };

  // ---- Waking. With the lock of calls.
  // Threads that wait for a change look again.
  void NotifyChanged() { changed_.notify_all(); }
  void WakeEngine() { wake_.notify_one(); }
  bool IsEngineAsleep() const { return asleep_; }
  // The engine's thread alone: waits for WakeEngine(), or for that long. `idle`: it has nothing to
  // do, so that a call that brings work has to wake it.
  void Sleep(core::Duration most, bool idle, Lock& lock);
  // Waits at most that long for a change without waking the engine's thread.
  void AwaitNotice(core::Duration most, Lock& lock) { changed_.wait_for(lock, most); }

  // ---- For JobMemory's callbacks.
  // A move has ended. Without a lock.
  void NotifyEnded();
  // The range's number may be used again. With the scheduler's lock.
  void NoteRemoved(uint32_t number) { removed_.push_back(number); }

 private:
  const EngineOptions& options_;
  Parts& parts_;
  JobMemory& memory_;
  SegmentTable& segments_;
  Streams& streams_;
  RangeTable& ranges_;
  const CallClock& clock_;
  Pinner* pinner_ = nullptr;

  BothLocks locks_;
  std::condition_variable_any changed_;  // a move ended, room came
  std::condition_variable_any wake_;     // for the engine's thread
  // Guarded by the scheduler's lock.
  std::vector<LoggedCall> seen_;   // kept for its memory
  std::vector<uint32_t> removed_;  // ranges' numbers
  // Guarded by the lock of calls.
  bool is_short_ = false;
  bool is_all_there_ = true;
  uint32_t reaching_ = 0;
  core::Tick short_until_{};  // the device has no more parts than are held
  uint32_t unknowns_ = 0;
  std::vector<Point> unknown_uses_;
  bool asleep_ = false;
  bool broken_;
};

}  // namespace ravenstore::elastic
