// The client's half of the lease protocol (docs/WIRE.md): what it may do to the words of a row.
//
// Threads: any. Every function is one compare-and-swap or a bounded wait; nothing here is locked.
#pragma once

#include <cstdint>
#include <optional>

#include "client/phase.h"
#include "core/types.h"
#include "proto/layout.h"

namespace ravenstore::client {

// Moves the row from `*seen` to `state` with `holders`, one generation on. False, with the word
// that was faster in `*seen`, when another thread or the daemon changed it.
inline bool CasLease(proto::LeaseSlot& row, uint64_t* seen, proto::LeaseState state,
                     uint16_t holders) {
  const uint64_t next = proto::Pack(proto::Next(proto::UnpackLease(*seen), state, holders));
  return row.word.compare_exchange_strong(*seen, next, std::memory_order_acq_rel,
                                          std::memory_order_acquire);
}

// True where a get finds the bytes on the device and needs no help of the daemon.
constexpr bool IsResident(proto::LeaseState state) {
  return state == proto::LeaseState::kInUse || state == proto::LeaseState::kIdle;
}

enum class Waited {
  kAnswered,     // the row is in another state than the one waited out
  kTimedOut,     // the deadline came first
  kInterrupted,  // the session is no longer attached
};

// Waits while the row is in `pending`: spins for some tens of microseconds, because the daemon
// answers within one or two when it is awake, then sleeps. `*answer` is the word that ended it.
Waited AwaitAnswer(proto::LeaseSlot& row, proto::LeaseState pending, core::Tick deadline,
                   const PhaseWord& phase, proto::LeaseWord* answer);

// Waits until `word` is at least `value`, polling: words that streams write wake no sleeper.
Waited AwaitWord(const std::atomic<uint64_t>& word, uint64_t value, core::Tick deadline,
                 const PhaseWord& phase);

// The daemon answers every request by its deadline; one that is later than this is unresponsive.
inline constexpr core::Duration kGrace = std::chrono::seconds(2);

// `now` + `wait`, or kNever where that would overflow.
core::Tick DeadlineAfter(core::Tick now, core::Duration wait);

// The moment a call waits for at most. It is computed when it is first asked for: a resident get
// asks no clock.
class Deadline {
 public:
  explicit Deadline(core::Duration wait) : wait_(wait) {}
  core::Tick at();

 private:
  core::Duration wait_;
  std::optional<core::Tick> at_;
};

}  // namespace ravenstore::client
