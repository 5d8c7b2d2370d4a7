#include "interceptor/hooks.h"

#include <string.h>

#include "interceptor/elf.h"
#include "interceptor/settings.h"

namespace ravenstore::interceptor {
namespace {

const HookInfo kTable[kHooks] = {
#define RAVEN_ROW(library, base, symbol, since, per_thread, elastic) \
  {Library::library,                                                 \
   base,                                                             \
   #symbol,                                                          \
   since,                                                            \
   per_thread != 0,                                                  \
   elastic,                                                          \
   reinterpret_cast<void*>(&symbol)},
#define HOOK(library, base, symbol, since, per_thread) \
  RAVEN_ROW(library, base, symbol, since, per_thread, false)
#define HOOK_ELASTIC(library, base, symbol, since, per_thread) \
  RAVEN_ROW(library, base, symbol, since, per_thread, true)
#include "interceptor/hooks.def"
};

// Zero before any constructor runs.
std::atomic<void*> reals[kHooks];
std::atomic<uint64_t> calls[kHooks];

void* Find(const HookInfo& info) {
  switch (info.library) {
    case Library::kLookup: {
      // Before glibc 2.34 they were libdl's.
      void* found = FindInLibrary("libc.so.6", info.symbol);
      return found != nullptr ? found : FindInLibrary("libdl.so.2", info.symbol);
    }
    case Library::kDriver: return FindInLibrary("libcuda.so", info.symbol);
    // Wheels bring theirs under names such as libcudart-d0da41ae.so.11.0.
    case Library::kRuntime: return FindInLibrary("libcudart", info.symbol);
    case Library::kNvml: return FindInLibrary("libnvidia-ml.so", info.symbol);
  }
  return nullptr;
}

}  // namespace

const HookInfo& InfoOf(Hook hook) {
  return kTable[static_cast<size_t>(hook)];
}

bool IsWanted(Hook hook) {
  return !InfoOf(hook).elastic || AskedMode() == Mode::kElastic;
}

Hook FindHook(const char* symbol) {
  // Nearly all that is looked up is something else.
  const bool candidate = strncmp(symbol, "cu", 2) == 0 || strncmp(symbol, "nvml", 4) == 0 ||
                         strncmp(symbol, "dl", 2) == 0;
  for (size_t i = 0; candidate && i < kHooks; ++i) {
    if (strcmp(kTable[i].symbol, symbol) == 0) return static_cast<Hook>(i);
  }
  return Hook::kCount;
}

Hook HookAt(const void* address) {
  for (size_t i = 0; i < kHooks; ++i) {
    if (kTable[i].entry == address || reals[i].load(std::memory_order_relaxed) == address) {
      return static_cast<Hook>(i);
    }
  }
  return Hook::kCount;
}

void* RealOf(Hook hook) {
  auto& real = reals[static_cast<size_t>(hook)];
  if (void* known = real.load(std::memory_order_acquire)) return known;
  void* found = Find(InfoOf(hook));
  if (found == nullptr) return nullptr;
  void* none = nullptr;
  return real.compare_exchange_strong(none, found) ? found : none;
}

void* Replacement(Hook hook, void* real) {
  const HookInfo& info = InfoOf(hook);
  // No caller gets a hook that is not wanted. Ours may still be found: it is the first of its name.
  if (!IsWanted(hook)) return IsOurs(real) ? RealOf(hook) : real;
  if (IsOurs(real)) return info.entry;
  void* none = nullptr;
  auto& known = reals[static_cast<size_t>(hook)];
  if (!known.compare_exchange_strong(none, real) && none != real &&
      info.library != Library::kDriver) {
    return real;
  }
  return info.entry;
}

uint64_t CallsOf(Hook hook) {
  return calls[static_cast<size_t>(hook)].load(std::memory_order_relaxed);
}

void Count(Hook hook) {
  calls[static_cast<size_t>(hook)].fetch_add(1, std::memory_order_relaxed);
}

}  // namespace ravenstore::interceptor
