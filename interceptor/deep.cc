#include "interceptor/deep.h"

#include <dlfcn.h>
#include <string.h>

#include <atomic>

#include "interceptor/check.h"
#include "interceptor/driver.h"
#include "interceptor/elf.h"
#include "interceptor/hooks.h"

namespace ravenstore::interceptor::deep {
namespace {

constinit std::atomic<bool> used{false};
// How many objects had been loaded when all of them were looked at.
constinit std::atomic<uint64_t> rebound{0};

void Visit(const Import& import, void*) {
  const Hook hook = FindHook(import.symbol);
  if (hook == Hook::kCount || !IsWanted(hook) || BringsHooked(import.object)) return;
  void* target = *import.slot;
  if (IsOurs(target)) return;
  const bool unbound = import.jump && strcmp(ObjectOf(target), import.object) == 0;
  // A runtime of the library's own stays: the driver below it is hooked. So does a word that the
  // program has put something else into.
  const bool runtime = InfoOf(hook).library == Library::kRuntime;
  if (unbound ? runtime : target != RealOf(hook)) return;
  // Without a driver in the process nothing can have been allocated.
  const bool late = !unbound && DriverFunction("cuInit") != nullptr;
  if (Rebind(import, InfoOf(hook).entry) && late) check::Late(import.symbol, import.object);
}

}  // namespace

void Opening(int mode) {
  if ((mode & RTLD_DEEPBIND) != 0) used.store(true);
}

void RebindLoaded() {
  if (!used.load(std::memory_order_relaxed)) return;
  const uint64_t added = ObjectsAdded();
  if (rebound.load() == added) return;
  // Another thread may be loading one of them. The loader's lock is free when it has been bound.
  auto* real = reinterpret_cast<void* (*)(void*, const char*)>(RealOf(Hook::k_dlsym));
  if (real != nullptr) real(RTLD_DEFAULT, "dlsym");
  ForEachImport(Visit, nullptr);
  rebound.store(added);
}

}  // namespace ravenstore::interceptor::deep
