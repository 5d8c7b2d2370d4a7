#include "interceptor/start.h"

#include <pthread.h>

#include <atomic>

#include "interceptor/backing.h"
#include "interceptor/devices.h"
#include "interceptor/ledger.h"
#include "interceptor/link.h"
#include "interceptor/pool.h"
#include "interceptor/settings.h"
#include "interceptor/tenant.h"
#include "interceptor/turn.h"

namespace ravenstore::interceptor {
namespace {

enum class Phase : uint32_t { kIdle, kStarted };

constinit std::atomic<Phase> phase{Phase::kIdle};
constinit pthread_mutex_t start_mutex = PTHREAD_MUTEX_INITIALIZER;
constinit bool fork_handlers = false;  // guarded by start_mutex

// Initial exec: no allocation on first use.
__attribute__((tls_model("initial-exec"))) thread_local int depth = 0;
__attribute__((tls_model("initial-exec"))) thread_local uint32_t hooks_seen = 0;

// A child has no context, memory, thread or daemon of its own: it begins again.
void InChild() {
  phase.store(Phase::kIdle);
  start_mutex = PTHREAD_MUTEX_INITIALIZER;
  ForgetDevicesInChild();
  ledger.Reset();
  tenant::ForgetInChild();
  link::ForgetInChild();
  turn::ForgetInChild();
  pool::ForgetInChild();
  Serving().forget_in_child();
}

}  // namespace

Within::Within() : outermost_(depth++ == 0) {
  ++hooks_seen;
}
Within::~Within() {
  --depth;
}

uint32_t DriverHooksSeen() {
  return hooks_seen;
}

bool Start() {
  if (phase.load(std::memory_order_acquire) == Phase::kStarted) return true;
  if (depth > 1) return false;
  pthread_mutex_lock(&start_mutex);
  bool started = phase.load() == Phase::kStarted;
  if (!started) {
    const Within within;
    ReadSettings();
    // First, since another thread may fork at any time: its child must not find the mutex locked.
    if (!fork_handlers) pthread_atfork(nullptr, nullptr, InChild);
    fork_handlers = true;
    started = FindDevices();
    if (started) {
      link::Begin();
      phase.store(Phase::kStarted, std::memory_order_release);
    }
  }
  pthread_mutex_unlock(&start_mutex);
  return started;
}

}  // namespace ravenstore::interceptor
