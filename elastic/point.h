// A place in the order of one stream's calls.
#pragma once

#include <cstdint>

namespace ravenstore::elastic {

struct Point {
  uint32_t stream = 0;  // an index; 0: no stream, always passed
  uint64_t call = 0;
};

}  // namespace ravenstore::elastic
