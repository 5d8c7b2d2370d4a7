#include "client/lease.h"

#include <time.h>

#include <algorithm>

#include "ipc/clock.h"
#include "ipc/spin.h"
#include "ipc/wake.h"

namespace ravenstore::client {
namespace {

using core::Duration;
using core::Tick;

// Longer than a sleeping daemon needs to wake and answer: a caller that slept as well would pay
// twice.
constexpr Duration kSpin = std::chrono::microseconds(150);
// A sleeper checks its session at least this often: the process that should wake it may be dead.
constexpr Duration kSliceMin = std::chrono::milliseconds(1);
constexpr Duration kSliceMax = std::chrono::milliseconds(20);
constexpr Duration kPollMin = std::chrono::microseconds(20);
constexpr Duration kPollMax = std::chrono::microseconds(500);

// Whether the cores are wanted by others is the same for every wait of this process.
ipc::Spinner& TheSpinner() {
  static ipc::Spinner spinner;
  return spinner;
}

// Calls `done` until it is true, or for as long as spinning is worth it.
template <typename Predicate>
bool Spin(Predicate done) {
  constexpr int kLooksBetweenClocks = 32;
  const Tick until = ipc::Now() + kSpin;
  do {
    for (int i = 0; i < kLooksBetweenClocks; ++i) {
      if (done()) return true;
      if (!TheSpinner().Pause()) return done();
    }
  } while (ipc::Now() < until);
  return done();
}

void SleepFor(Duration duration) {
  const timespec wait{.tv_sec = 0, .tv_nsec = duration.count()};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, nullptr);
}

}  // namespace

Waited AwaitAnswer(proto::LeaseSlot& row, proto::LeaseState pending, Tick deadline,
                   const PhaseWord& phase, proto::LeaseWord* answer) {
  uint64_t word = 0;
  const auto answered = [&] {
    word = row.word.load(std::memory_order_seq_cst);
    *answer = proto::UnpackLease(word);
    return answer->state != pending;
  };
  if (Spin(answered)) return Waited::kAnswered;
  Duration slice = kSliceMin;
  while (true) {
    if (phase.load(std::memory_order_acquire) != Phase::kAttached) return Waited::kInterrupted;
    const Tick now = ipc::Now();
    if (now >= deadline) return Waited::kTimedOut;
    // Either the daemon's store to the word comes first, and we see it, or ours to `waiters` does,
    // and the daemon wakes us.
    row.waiters.store(1, std::memory_order_seq_cst);
    if (answered()) return Waited::kAnswered;
    ipc::SleepOnLowHalf(&row.word, word, std::min(deadline, now + slice));
    if (answered()) return Waited::kAnswered;
    slice = std::min(slice * 2, kSliceMax);
  }
}

Waited AwaitWord(const std::atomic<uint64_t>& word, uint64_t value, Tick deadline,
                 const PhaseWord& phase) {
  const auto reached = [&] { return word.load(std::memory_order_acquire) >= value; };
  if (!reached() && !Spin(reached)) {
    Duration pause = kPollMin;
    while (!reached()) {
      if (phase.load(std::memory_order_acquire) != Phase::kAttached) return Waited::kInterrupted;
      if (ipc::Now() >= deadline) return Waited::kTimedOut;
      SleepFor(pause);
      pause = std::min(pause * 2, kPollMax);
    }
  }
  // Arrivals are released when the session is lost, without any bytes having arrived.
  return phase.load(std::memory_order_acquire) == Phase::kAttached ? Waited::kAnswered
                                                                   : Waited::kInterrupted;
}

Tick DeadlineAfter(Tick now, Duration wait) {
  return wait > core::kNever - now ? core::kNever : now + wait;
}

Tick Deadline::at() {
  if (!at_) at_ = DeadlineAfter(ipc::Now(), wait_);
  return *at_;
}

}  // namespace ravenstore::client
