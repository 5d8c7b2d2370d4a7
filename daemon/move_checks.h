// How many moves' bytes were compared at their end, and how many were other bytes.
#pragma once

#include <cstdint>

namespace ravenstore::daemon {

struct MoveChecks {
  uint64_t checked = 0;
  uint64_t wrong = 0;
};

}  // namespace ravenstore::daemon
