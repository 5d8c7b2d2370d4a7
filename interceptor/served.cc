#include "interceptor/served.h"

#include <pthread.h>

#include <atomic>

#include "client/ravenstore.h"
#include "interceptor/devices.h"
#include "interceptor/driver.h"
#include "interceptor/hooks.h"
#include "interceptor/link.h"
#include "interceptor/near.h"
#include "interceptor/settings.h"

namespace ravenstore::interceptor::served {
namespace {

struct Library {
  decltype(&ravenstore_connect) connect;
  decltype(&ravenstore_create) create;
  decltype(&ravenstore_free) free;
  decltype(&ravenstore_data) data;
  decltype(&ravenstore_last_error) last_error;
  ravenstore_store_t* store;
};

enum class Phase : uint32_t { kUnknown, kOff, kReady };

constinit pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
constinit std::atomic<Phase> phase{Phase::kUnknown};
constinit Library library{};

bool Load() {
  // In the same folder when it was installed, in the folder of its own when it was only built.
  void* handle = LoadNear("libravenstore.so");
  if (handle == nullptr) handle = LoadNear("../client/libravenstore.so");
  if (handle == nullptr) {
    Log("--mode=store: no libravenstore.so beside the interceptor: the driver serves");
    return false;
  }
  if (!TakeFunction(handle, "ravenstore_connect", &library.connect) ||
      !TakeFunction(handle, "ravenstore_create", &library.create) ||
      !TakeFunction(handle, "ravenstore_free", &library.free) ||
      !TakeFunction(handle, "ravenstore_data", &library.data) ||
      !TakeFunction(handle, "ravenstore_last_error", &library.last_error)) {
    return false;
  }
  ravenstore_connect_options_t options{};
  options.struct_size = sizeof(options);
  constexpr uint64_t kTimeoutNs = 10'000'000'000;
  options.timeout_ns = kTimeoutNs;
  if (library.connect(&options, &library.store) == RAVENSTORE_OK) return true;
  Log("--mode=store: %s: the driver serves", library.last_error());
  return false;
}

constexpr uint64_t kLeastBytes = uint64_t{2} << 20;

bool Ready() {
  const Phase known = phase.load(std::memory_order_acquire);
  if (known != Phase::kUnknown) return known == Phase::kReady;
  pthread_mutex_lock(&mutex);
  if (phase.load() == Phase::kUnknown) {
    const bool ready = link::Attached() && Load();
    phase.store(ready ? Phase::kReady : Phase::kOff, std::memory_order_release);
  }
  pthread_mutex_unlock(&mutex);
  return phase.load() == Phase::kReady;
}

bool Wants(const Entry& entry) {
  return entry.kind == LegacyKind::kDevice && entry.bytes >= kLeastBytes && Ready();
}

bool Create(Entry* entry, const Order&) {
  ravenstore_create_options_t options{};
  options.struct_size = sizeof(options);
  options.device = DeviceOf(entry->row);
  options.flags = RAVENSTORE_FAIL_FAST;
  ravenstore_tensor_t* tensor = nullptr;
  if (library.create(library.store, entry->bytes, &options, &tensor) != RAVENSTORE_OK) {
    Log("--mode=store: %s: the driver serves %llu bytes", library.last_error(),
        static_cast<unsigned long long>(entry->bytes));
    return false;
  }
  entry->key = reinterpret_cast<uint64_t>(library.data(tensor));
  entry->object = tensor;
  return true;
}

// Waits for the context's work, as the driver's own free does.
void Free(const Entry& entry, const Order&) {
  using Function = CUresult();
  static std::atomic<Function*> synchronize{nullptr};
  Function* function = Cached(&synchronize, "cuCtxSynchronize");
  if (function != nullptr) function();
  library.free(library.store, static_cast<ravenstore_tensor_t*>(entry.object), nullptr);
}

void ForgetInChild() {
  mutex = PTHREAD_MUTEX_INITIALIZER;
  phase.store(Phase::kUnknown);
  // Its own fork handler took care of what it holds.
  library.store = nullptr;
}

}  // namespace

constinit const Backing kBacking = {
    .counted = true,
    .wants = Wants,
    .create = Create,
    .free = Free,
    // The driver does not count it as the context's memory: the ledger knows what to free.
    .context_ends = [](CUcontext) {},
    .make_room = [](int, uint64_t) { return false; },
    .room_made = [](int, uint64_t, uint64_t) {},
    .free_to_job = [](int, uint64_t free) { return free; },
    .forget_in_child = ForgetInChild,
};

}  // namespace ravenstore::interceptor::served
