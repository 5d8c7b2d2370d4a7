// Sleeping and waking across processes: a futex for a client that waits for its answer, an eventfd
// for the daemon that waits for requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "core/result.h"
#include "core/types.h"
#include "ipc/unique_fd.h"

namespace ravenstore::ipc {

enum class Sleep {
  kWoken,  // woken, or the word had changed, or for no reason: look again
  kTimedOut,
};

// Sleeps while the low half of `*word` equals that of `expected`, at most until `deadline`
// (core::kNever: no bound). `word` is in a shared mapping. Any process that maps it may wake it, or
// not, so call this in a loop that re-reads the word.
Sleep SleepOnLowHalf(const std::atomic<uint64_t>* word, uint64_t expected, core::Tick deadline);

// Wakes everyone who sleeps on `word`, in every process. A system call: the caller first looks
// whether anybody does (LeaseSlot::waiters).
void WakeLowHalf(const std::atomic<uint64_t>* word);

// An eventfd that wakes the daemon's epoll. Give every client its own: a process that holds one can
// also drain it, and so swallow what another client rang.
class Doorbell {
 public:
  // Errors: kLimit (out of descriptors), kSystem.
  static core::Result<Doorbell> Create();
  // The end that came over the socket.
  explicit Doorbell(UniqueFd descriptor) : descriptor_(std::move(descriptor)) {}

  int fd() const { return descriptor_.get(); }
  void Ring();
  // Silences it. Never blocks, even when the other holder made the shared descriptor blocking.
  void Drain();

 private:
  UniqueFd descriptor_;
};

// The producer's side of the asleep flag, after it published work: rings `eventfd` when the other
// side sleeps. No system call when it is awake.
void WakeIfAsleep(std::atomic<uint32_t>* asleep, int eventfd);

// The sleeper's side. True: it may now block on the eventfd, and a producer that publishes work
// from here on rings it; false: there is work already, and the flag is down again. `has_work` looks
// at everything the flag guards. Call StayAwake after waking.
template <typename Predicate>
bool GoToSleep(std::atomic<uint32_t>* asleep, Predicate has_work) {
  asleep->store(1, std::memory_order_relaxed);
  // Either the producer's fence comes first, and has_work sees its entry, or this one does, and the
  // producer sees the flag.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!has_work()) return true;
  asleep->store(0, std::memory_order_relaxed);
  return false;
}

inline void StayAwake(std::atomic<uint32_t>* asleep) {
  asleep->store(0, std::memory_order_relaxed);
}

}  // namespace ravenstore::ipc
