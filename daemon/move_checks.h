// The number of moves of which the bytes were compared at their end, and of those that differed.
#pragma once

#include <cstdint>

namespace ravenstore::daemon {

struct MoveChecks {
  uint64_t checked = 0;
  uint64_t wrong = 0;
};

}  // namespace ravenstore::daemon
