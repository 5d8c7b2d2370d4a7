#include "ipc/wake.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>

#include "ipc/clock.h"

namespace ravenstore::ipc {
namespace {

static_assert(std::endian::native == std::endian::little, "the low half stands first");

timespec ToTimespec(core::Tick tick) {
  const auto since = std::max(tick.time_since_epoch(), core::Duration(0));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  return {.tv_sec = seconds.count(), .tv_nsec = (since - seconds).count()};
}

// Not private: the sleepers and wakers are different processes.
long FutexWaitUntil(const std::atomic<uint64_t>* word, uint32_t expected,
                    const timespec* deadline) {
  return syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, deadline, nullptr,
                 FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

Sleep SleepOnLowHalf(const std::atomic<uint64_t>* word, uint64_t expected, core::Tick deadline) {
  const timespec until = ToTimespec(deadline);
  const timespec* bound = deadline == core::kNever ? nullptr : &until;
  if (FutexWaitUntil(word, static_cast<uint32_t>(expected), bound) == 0) return Sleep::kWoken;
  if (errno == ETIMEDOUT) return Sleep::kTimedOut;
  if (errno == EAGAIN) return Sleep::kWoken;  // it had changed
  // A signal came, or a sandbox forbids the call: then the caller's loop turns into a spin, which
  // the deadline still bounds.
  return Now() >= deadline ? Sleep::kTimedOut : Sleep::kWoken;
}

void WakeLowHalf(const std::atomic<uint64_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

core::Result<Doorbell> Doorbell::Create() {
  UniqueFd descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!descriptor) {
    const bool full = errno == EMFILE || errno == ENFILE;
    return core::Error{full ? core::ErrorCode::kLimit : core::ErrorCode::kSystem,
                       std::string("eventfd: ") + std::strerror(errno)};
  }
  return Doorbell(std::move(descriptor));
}

void Doorbell::Ring() {
  const uint64_t one = 1;
  // A full counter (EAGAIN) is already ringing.
  while (write(descriptor_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void Doorbell::Drain() {
  uint64_t count = 0;
  iovec buffer{&count, sizeof(count)};
  ssize_t got;
  do {
    got = preadv2(descriptor_.get(), &buffer, 1, -1, RWF_NOWAIT);
  } while (got < 0 && errno == EINTR);
  if (got >= 0 || errno != EOPNOTSUPP) return;
  // Kernels before 5.8 have no RWF_NOWAIT for eventfds.
  pollfd ready{descriptor_.get(), POLLIN, 0};
  if (poll(&ready, 1, 0) == 1) got = read(descriptor_.get(), &count, sizeof(count));
}

void WakeIfAsleep(std::atomic<uint32_t>* asleep, int eventfd) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (asleep->load(std::memory_order_relaxed) == 0) return;
  // One of several producers rings.
  if (asleep->exchange(0, std::memory_order_acq_rel) == 0) return;
  const uint64_t one = 1;
  while (write(eventfd, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

}  // namespace ravenstore::ipc
