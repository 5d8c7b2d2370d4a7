#include "interceptor/served.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "client/ravenstore.h"
#include "interceptor/account.h"
#include "interceptor/elf.h"
#include "interceptor/hooks.h"
#include "interceptor/link.h"

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

template <typename Function>
bool Take(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  return *function != nullptr;
}

// Loads `name`, seen from the folder that this library lies in.
void* LoadNear(const char* name) {
  char path[PATH_MAX];
  const char* own = ObjectOf(reinterpret_cast<const void*>(&LoadNear));
  const char* slash = strrchr(own, '/');
  const int folder = slash == nullptr ? 0 : static_cast<int>(slash - own) + 1;
  const int length = snprintf(path, sizeof(path), "%.*s%s", folder, own, name);
  const bool fits = length > 0 && length < static_cast<int>(sizeof(path));
  return fits ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
}

bool Load() {
  // Beside us when it was installed, in the folder of its own when it was only built.
  void* handle = LoadNear("libravenstore.so");
  if (handle == nullptr) handle = LoadNear("../client/libravenstore.so");
  if (handle == nullptr) {
    Log("--mode=store: no libravenstore.so beside the interceptor: the driver serves");
    return false;
  }
  if (!Take(handle, "ravenstore_connect", &library.connect) ||
      !Take(handle, "ravenstore_create", &library.create) ||
      !Take(handle, "ravenstore_free", &library.free) ||
      !Take(handle, "ravenstore_data", &library.data) ||
      !Take(handle, "ravenstore_last_error", &library.last_error)) {
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

}  // namespace

bool Wants(uint64_t bytes) {
  if (bytes < kLeastBytes) return false;
  const Phase known = phase.load(std::memory_order_acquire);
  if (known != Phase::kUnknown) return known == Phase::kReady;
  pthread_mutex_lock(&mutex);
  if (phase.load() == Phase::kUnknown) {
    const bool ready = Asked().store && link::Attached() && Load();
    phase.store(ready ? Phase::kReady : Phase::kOff, std::memory_order_release);
  }
  pthread_mutex_unlock(&mutex);
  return phase.load() == Phase::kReady;
}

void* Create(int row, uint64_t bytes, CUdeviceptr* address) {
  ravenstore_create_options_t options{};
  options.struct_size = sizeof(options);
  options.device = DeviceOf(row);
  options.flags = RAVENSTORE_FAIL_FAST;
  ravenstore_tensor_t* tensor = nullptr;
  if (library.create(library.store, bytes, &options, &tensor) != RAVENSTORE_OK) {
    Log("--mode=store: %s: the driver serves %llu bytes", library.last_error(),
        static_cast<unsigned long long>(bytes));
    return nullptr;
  }
  *address = reinterpret_cast<CUdeviceptr>(library.data(tensor));
  return tensor;
}

void Free(void* tensor) {
  using Function = CUresult();
  static std::atomic<Function*> synchronize{nullptr};
  Function* function = Cached(&synchronize, "cuCtxSynchronize");
  if (function != nullptr) function();
  library.free(library.store, static_cast<ravenstore_tensor_t*>(tensor), nullptr);
}

void ForgetInChild() {
  mutex = PTHREAD_MUTEX_INITIALIZER;
  phase.store(Phase::kUnknown);
  // Its own fork handler took care of what it holds.
  library.store = nullptr;
}

}  // namespace ravenstore::interceptor::served
