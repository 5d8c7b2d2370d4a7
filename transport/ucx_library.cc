#include "transport/ucx_library.h"

#include <dlfcn.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>

namespace ravenstore::transport {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;

// Puts the process's own handlers back when it goes.
class KeepCrashHandlers {
 public:
  KeepCrashHandlers() {
    for (auto& [number, action] : kept_) ::sigaction(number, nullptr, &action);
  }
  ~KeepCrashHandlers() {
    for (const auto& [number, action] : kept_) ::sigaction(number, &action, nullptr);
  }
  KeepCrashHandlers(const KeepCrashHandlers&) = delete;
  KeepCrashHandlers& operator=(const KeepCrashHandlers&) = delete;

 private:
  std::array<std::pair<int, struct sigaction>, 5> kept_ = {
      {{SIGSEGV, {}}, {SIGBUS, {}}, {SIGILL, {}}, {SIGFPE, {}}, {SIGABRT, {}}}};
};

Result<void*> Open(const char* file) {
  void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error{ErrorCode::kUnsupported,
                 "UCX cannot be loaded (install the package libucx0): " + std::string(::dlerror())};
  }
  return library;
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

Result<UcxLibrary> Load() {
  const KeepCrashHandlers keep;
  RAVEN_ASSIGN_OR_RETURN(void* const ucs, Open("libucs.so.0"));
  RAVEN_ASSIGN_OR_RETURN(void* const ucp, Open("libucp.so.0"));
  UcxLibrary ucx;
  const char* missing = nullptr;
#define RAVEN_UCP_FIND(name) \
  if (!Find(ucp, #name, &ucx.name)) missing = #name;
#define RAVEN_UCS_FIND(name) \
  if (!Find(ucs, #name, &ucx.name)) missing = #name;
  RAVEN_UCP_FUNCTIONS(RAVEN_UCP_FIND)
  RAVEN_UCS_FUNCTIONS(RAVEN_UCS_FIND)
#undef RAVEN_UCP_FIND
#undef RAVEN_UCS_FIND
  if (missing != nullptr) {
    return Error{ErrorCode::kUnsupported,
                 "the UCX that is installed has no " + std::string(missing) + "; 1.13 has it"};
  }
  // It logs to the standard output, also what is answered here with an error.
  if (std::getenv("UCX_LOG_LEVEL") == nullptr) {
    ucx.ucs_global_opts_set_value("LOG_LEVEL", "fatal");
  }
  return ucx;
}

}  // namespace

Result<const UcxLibrary*> LoadUcx() {
  static const Result<UcxLibrary> loaded = Load();
  if (!loaded.ok()) return loaded.error();
  return &*loaded;
}

}  // namespace ravenstore::transport
