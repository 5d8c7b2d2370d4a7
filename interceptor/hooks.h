// The hook table at run time: every hooked symbol, our entry point for it, and the real one.
//
// Real functions are found in the library that is loaded (elf.h), on first use: this library may be
// called before its own constructors ran, from any thread, and never loads a library that the
// program did not.
//
// Threads: any; nothing here locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "interceptor/cuda_api.h"

namespace ravenstore::interceptor {

enum class Library : uint8_t { kLookup, kDriver, kRuntime, kNvml };

enum class Hook : uint16_t {
#define HOOK(library, base, symbol, since, per_thread) k_##symbol,
#include "interceptor/hooks.def"
  kCount
};
inline constexpr size_t kHooks = static_cast<size_t>(Hook::kCount);

struct HookInfo {
  Library library;
  const char* base;
  const char* symbol;
  int since;
  bool per_thread;
  bool elastic;  // of no interest in other modes
  void* entry;   // ours
};
const HookInfo& InfoOf(Hook hook);

// The program shall be handed it: in elastic mode that is all of them.
bool IsWanted(Hook hook);
// The hook whose exported name is `symbol`, or kCount.
Hook FindHook(const char* symbol);
// The hook whose entry point or real function is `address`, or kCount.
Hook HookAt(const void* address);

// The real function, or null while its library is not loaded or does not have it.
void* RealOf(Hook hook);
// `real` was found by the program's own look-up: what it should get instead. For the first one
// found that is our entry point, if it is wanted; another copy of a runtime in the same process
// stays as it is, since the driver below it is hooked.
void* Replacement(Hook hook, void* real);

// How often the program was handed our entry point, for --check.
uint64_t CallsOf(Hook hook);
void Count(Hook hook);

}  // namespace ravenstore::interceptor

// The real function behind the hook `symbol`, typed.
#define RAVEN_REAL(symbol)               \
  reinterpret_cast<decltype(&(symbol))>( \
      ::ravenstore::interceptor::RealOf(::ravenstore::interceptor::Hook::k_##symbol))

// How the driver's hooks begin: the real function, or the error of a driver that is not there.
#define RAVEN_BEGIN(symbol)                               \
  auto* real = RAVEN_REAL(symbol);                        \
  if (real == nullptr) return CUDA_ERROR_NOT_INITIALIZED; \
  ravenstore::interceptor::Count(ravenstore::interceptor::Hook::k_##symbol)
