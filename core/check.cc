#include "core/check.h"

#include <cstdio>
#include <cstdlib>

namespace ravenstore::core {

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "ravenstore: broken invariant: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace ravenstore::core
