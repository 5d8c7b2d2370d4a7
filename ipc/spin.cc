#include "ipc/spin.h"

#include <sched.h>

#include "ipc/clock.h"

namespace ravenstore::ipc {

namespace {

constexpr int kFewCores = 4;
// The other side answers within some microseconds; a time slice is some milliseconds.
constexpr core::Duration kLongAway = std::chrono::microseconds(500);
constexpr core::Duration kCrowdedFor = std::chrono::milliseconds(100);

}  // namespace

int UsableCores() {
  cpu_set_t cores;
  // It fails where there are more than the set has room for.
  return ::sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : CPU_SETSIZE;
}

Spinner::Spinner(int cores) : few_cores_(cores < kFewCores) {}

bool Spinner::Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
  if (!few_cores_) return true;
  const core::Tick before = Now();
  if (before.time_since_epoch().count() < crowded_until_.load(std::memory_order_relaxed))
    return false;
  ::sched_yield();
  const core::Tick after = Now();
  if (after - before < kLongAway) return true;
  crowded_until_.store((after + kCrowdedFor).time_since_epoch().count(), std::memory_order_relaxed);
  return false;
}

}  // namespace ravenstore::ipc
