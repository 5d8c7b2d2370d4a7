// dlsym, dlvsym and CUDA's own look-ups: a caller that asks for a hooked function gets ours. And
// dlopen, which is only watched (deep.h).
//
// glibc finds the object that asks (for RTLD_NEXT, and for the search path) by the return address,
// so what is none of ours is jumped to, not called, with the caller's return address in place.
#include <dlfcn.h>
#include <string.h>

#include "interceptor/deep.h"
#include "interceptor/driver.h"
#include "interceptor/elf.h"
#include "interceptor/hooks.h"

namespace ravenstore::interceptor {
namespace {

using DlsymFunction = void*(void*, const char*);
using DlvsymFunction = void*(void*, const char*, const char*);

// Means "nothing". The jump below distinguishes it from null, "ask the real one".
void* const kNone = reinterpret_cast<void*>(1);

DlsymFunction* RealDlsym() {
  return reinterpret_cast<DlsymFunction*>(RealOf(Hook::k_dlsym));
}

// There is no such function, though ours would be found: kNone, and dlerror then returns the error.
// A program may look at that alone.
void* None(const char* name) {
  static std::atomic<void*> libc{nullptr};
  void* other = libc.load(std::memory_order_relaxed);
  if (other == nullptr) {
    other = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    libc.store(other, std::memory_order_relaxed);
  }
  if (other != nullptr) RealDlsym()(other, name);
  return kNone;
}

// What cuGetProcAddress found for `symbol`: which hook is that?
Hook HookOf(const char* symbol, const void* found, int version, bool per_thread) {
  if (strncmp(symbol, "cu", 2) != 0) return Hook::kCount;
  Hook best = Hook::kCount;
  for (size_t i = 0; i < kHooks; ++i) {
    const auto hook = static_cast<Hook>(i);
    const HookInfo& info = InfoOf(hook);
    // Some are asked for by the name that they are exported with as well.
    if (info.library != Library::kDriver ||
        (strcmp(info.base, symbol) != 0 && strcmp(info.symbol, symbol) != 0)) {
      continue;
    }
    // Ours where a library's own look at its symbols finds those that were preloaded.
    if (RealOf(hook) == found || info.entry == found) return hook;
    if (info.since > version) continue;
    // A function without a per-thread variant has one for both.
    if (best != Hook::kCount) {
      const HookInfo& other = InfoOf(best);
      if (other.per_thread == per_thread && info.per_thread != per_thread) continue;
      if (other.per_thread == info.per_thread && other.since >= info.since) continue;
    } else if (info.per_thread && !per_thread) {
      continue;
    }
    best = hook;
  }
  return best;
}

void Replace(const char* symbol, void** function, int version, cuuint64_t flags) {
  if (symbol == nullptr || function == nullptr || *function == nullptr) return;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const Hook hook = HookOf(symbol, *function, version, per_thread);
  if (hook != Hook::kCount) *function = Replacement(hook, *function);
}

// The flags as the variants for per-thread default streams read them.
cuuint64_t PerThread(cuuint64_t flags) {
  const bool legacy = (flags & CU_GET_PROC_ADDRESS_LEGACY_STREAM) != 0;
  return legacy ? flags : flags | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
}

int DriverVersion() {
  static std::atomic<int> known{0};
  if (const int version = known.load(std::memory_order_relaxed)) return version;
  int version = 0;
  auto* get = reinterpret_cast<CUresult (*)(int*)>(DriverFunction("cuDriverGetVersion"));
  if (get == nullptr || get(&version) != CUDA_SUCCESS) return CUDA_VERSION;
  known.store(version, std::memory_order_relaxed);
  return version;
}

}  // namespace

// Our answer to dlsym, kNone, or null when the real one should answer itself.
extern "C" __attribute__((visibility("hidden"), used)) void* RavenAnswerDlsym(void* handle,
                                                                              const char* name) {
  deep::RebindLoaded();
  if (name == nullptr) return nullptr;
  const Hook hook = FindHook(name);
  if (hook == Hook::kCount) return nullptr;
  if (InfoOf(hook).library == Library::kLookup) return InfoOf(hook).entry;
  if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
    // Ours would be found, though the library may not be there: then there is no such function.
    if (void* real = RealOf(hook)) return IsWanted(hook) ? InfoOf(hook).entry : real;
    return IsOurs(RealDlsym()(RTLD_DEFAULT, name)) ? None(name) : nullptr;
  }
  void* found = RealDlsym()(handle, name);
  if (found == nullptr) return nullptr;
  // The program's own handle, dlopen's of no name, reaches ours as well.
  return IsOurs(found) && RealOf(hook) == nullptr ? None(name) : Replacement(hook, found);
}

extern "C" __attribute__((visibility("hidden"), used)) void* RavenAnswerDlvsym(
    void* handle, const char* name, const char* version) {
  deep::RebindLoaded();
  if (name == nullptr || version == nullptr) return nullptr;
  const Hook hook = FindHook(name);
  if (hook == Hook::kCount) return nullptr;
  if (InfoOf(hook).library == Library::kLookup) return InfoOf(hook).entry;
  auto* real = reinterpret_cast<DlvsymFunction*>(RealOf(Hook::k_dlvsym));
  if (real == nullptr || handle == RTLD_NEXT) return nullptr;
  void* found = real(handle, name, version);
  return found == nullptr ? nullptr : Replacement(hook, found);
}

// Answers nothing: the real one shall.
extern "C" __attribute__((visibility("hidden"), used)) void* RavenAnswerDlopen(const char*,
                                                                               int mode) {
  deep::RebindLoaded();
  deep::Opening(mode);
  return nullptr;
}

// Where to jump to.
extern "C" __attribute__((visibility("hidden"), used)) void* RavenRealDlsym() {
  return RealOf(Hook::k_dlsym);
}
extern "C" __attribute__((visibility("hidden"), used)) void* RavenRealDlvsym() {
  return RealOf(Hook::k_dlvsym);
}
// Another library may watch dlopen as well: it is the next.
extern "C" __attribute__((visibility("hidden"), used)) void* RavenRealDlopen() {
  static std::atomic<void*> next{nullptr};
  void* known = next.load(std::memory_order_relaxed);
  if (known == nullptr) {
    known = RealDlsym()(RTLD_NEXT, "dlopen");
    next.store(known, std::memory_order_relaxed);
  }
  return known;
}

#if !defined(__x86_64__)
#error "the look-ups' jump is written for x86-64"
#endif

// Keeps the arguments, asks for our answer, and returns it or jumps to the real function.
#define RAVEN_LOOKUP(name, answer, real)                \
  __asm__(                                              \
      ".text\n"                                         \
      ".globl " #name                                   \
      "\n"                                              \
      ".type " #name ", @function\n" #name              \
      ":\n"                                             \
      "  .cfi_startproc\n"                              \
      "  endbr64\n"                                     \
      "  push %rdi\n  .cfi_adjust_cfa_offset 8\n"       \
      "  push %rsi\n  .cfi_adjust_cfa_offset 8\n"       \
      "  push %rdx\n  .cfi_adjust_cfa_offset 8\n"       \
      "  call " #answer                                 \
      "\n"                                              \
      "  test %rax, %rax\n"                             \
      "  jne 1f\n"                                      \
      "  call " #real                                   \
      "\n"                                              \
      "  pop %rdx\n  .cfi_adjust_cfa_offset -8\n"       \
      "  pop %rsi\n  .cfi_adjust_cfa_offset -8\n"       \
      "  pop %rdi\n  .cfi_adjust_cfa_offset -8\n"       \
      "  jmp *%rax\n"                                   \
      "  .cfi_adjust_cfa_offset 24\n"                   \
      "1:\n"                                            \
      "  cmp $1, %rax\n"                                \
      "  jne 2f\n"                                      \
      "  xor %eax, %eax\n"                              \
      "2:\n"                                            \
      "  add $24, %rsp\n  .cfi_adjust_cfa_offset -24\n" \
      "  ret\n"                                         \
      "  .cfi_endproc\n"                                \
      ".size " #name ", . - " #name "\n")

RAVEN_LOOKUP(dlsym, RavenAnswerDlsym, RavenRealDlsym);
RAVEN_LOOKUP(dlvsym, RavenAnswerDlvsym, RavenRealDlvsym);
RAVEN_LOOKUP(dlopen, RavenAnswerDlopen, RavenRealDlopen);

}  // namespace ravenstore::interceptor

using ravenstore::interceptor::DriverVersion;
using ravenstore::interceptor::PerThread;
using ravenstore::interceptor::Replace;

RAVEN_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int version,
                                       cuuint64_t flags) {
  auto* real = RAVEN_REAL(cuGetProcAddress);
  if (real == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  const CUresult result = real(symbol, function, version, flags);
  if (result == CUDA_SUCCESS) Replace(symbol, function, version, flags);
  return result;
}

RAVEN_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                          cuuint64_t flags,
                                          CUdriverProcAddressQueryResult* status) {
  auto* real = RAVEN_REAL(cuGetProcAddress_v2);
  if (real == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  const CUresult result = real(symbol, function, version, flags, status);
  if (result == CUDA_SUCCESS) Replace(symbol, function, version, flags);
  return result;
}

// The variants' default is the per-thread stream.
RAVEN_EXPORT CUresult cuGetProcAddress_ptsz(const char* symbol, void** function, int version,
                                            cuuint64_t flags) {
  auto* real = RAVEN_REAL(cuGetProcAddress_ptsz);
  if (real == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  const CUresult result = real(symbol, function, version, flags);
  if (result == CUDA_SUCCESS) Replace(symbol, function, version, PerThread(flags));
  return result;
}

RAVEN_EXPORT CUresult cuGetProcAddress_v2_ptsz(const char* symbol, void** function, int version,
                                               cuuint64_t flags,
                                               CUdriverProcAddressQueryResult* status) {
  auto* real = RAVEN_REAL(cuGetProcAddress_v2_ptsz);
  if (real == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  const CUresult result = real(symbol, function, version, flags, status);
  if (result == CUDA_SUCCESS) Replace(symbol, function, version, PerThread(flags));
  return result;
}

// The runtime's flags are the driver's: the bit for per-thread default streams is the same.
static_assert(static_cast<unsigned>(cudaEnablePerThreadDefaultStream) ==
              static_cast<unsigned>(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));

RAVEN_EXPORT cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function,
                                                 unsigned long long flags,
                                                 cudaDriverEntryPointQueryResult* status) {
  auto* real = RAVEN_REAL(cudaGetDriverEntryPoint);
  if (real == nullptr) return cudaErrorInitializationError;
  const cudaError_t result = real(symbol, function, flags, status);
  if (result == cudaSuccess) Replace(symbol, function, DriverVersion(), flags);
  return result;
}

RAVEN_EXPORT cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function,
                                                      unsigned long long flags,
                                                      cudaDriverEntryPointQueryResult* status) {
  auto* real = RAVEN_REAL(cudaGetDriverEntryPoint_ptsz);
  if (real == nullptr) return cudaErrorInitializationError;
  const cudaError_t result = real(symbol, function, flags, status);
  if (result == cudaSuccess) Replace(symbol, function, DriverVersion(), PerThread(flags));
  return result;
}

RAVEN_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                                          unsigned int version,
                                                          unsigned long long flags,
                                                          cudaDriverEntryPointQueryResult* status) {
  auto* real = RAVEN_REAL(cudaGetDriverEntryPointByVersion);
  if (real == nullptr) return cudaErrorInitializationError;
  const cudaError_t result = real(symbol, function, version, flags, status);
  if (result == cudaSuccess) Replace(symbol, function, static_cast<int>(version), flags);
  return result;
}

RAVEN_EXPORT cudaError_t cudaGetDriverEntryPointByVersion_ptsz(
    const char* symbol, void** function, unsigned int version, unsigned long long flags,
    cudaDriverEntryPointQueryResult* status) {
  auto* real = RAVEN_REAL(cudaGetDriverEntryPointByVersion_ptsz);
  if (real == nullptr) return cudaErrorInitializationError;
  const cudaError_t result = real(symbol, function, version, flags, status);
  if (result == cudaSuccess) {
    Replace(symbol, function, static_cast<int>(version), PerThread(flags));
  }
  return result;
}
