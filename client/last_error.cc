#include "client/last_error.h"

namespace ravenstore::client {
namespace {

// Destructors of the caller's may fail here after ours ran: those of what a thread made earlier,
// and those of static objects, which come after the main thread's own.
constinit thread_local bool t_ended = false;
struct LastError {
  std::string words;
  ~LastError() { t_ended = true; }
};
thread_local LastError t_last_error;

}  // namespace

ravenstore_code_t Fail(core::ErrorCode code, const char* words) noexcept {
  if (t_ended) return static_cast<ravenstore_code_t>(code);
  try {
    t_last_error.words = words;
  } catch (const std::bad_alloc&) {
    t_last_error.words.clear();
  }
  return static_cast<ravenstore_code_t>(code);
}

const char* LastWords() noexcept {
  return t_ended ? "this thread has ended: its errors have no words any more"
                 : t_last_error.words.c_str();
}

}  // namespace ravenstore::client
