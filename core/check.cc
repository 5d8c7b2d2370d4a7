#include "core/check.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace ravenstore::core {

void CheckFailed(const char* condition, const char* file, int line) {
  char words[1024];
  const int length = std::snprintf(
      words, sizeof(words), "ravenstore: broken invariant: %s (%s:%d)\n", condition, file, line);
  // Standard error may be a pipe that no process reads: the abort must not wait for a reader.
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (length > 0 && ::poll(&room, 1, /*timeout=*/300) > 0) {
    const auto bytes = std::min(static_cast<size_t>(length), sizeof(words) - 1);
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, words, bytes);
  }
  std::abort();
}

}  // namespace ravenstore::core
