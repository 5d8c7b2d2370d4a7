// A place in the order of one stream's calls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ravenstore::elastic {

struct Point {
  uint32_t stream = 0;  // an index; 0: no stream, always passed
  uint64_t call = 0;
};

// `points` have the last one of each stream.
inline void NoteLast(std::vector<Point>* points, const Point& point) {
  for (Point& last : *points) {
    if (last.stream != point.stream) continue;
    last.call = std::max(last.call, point.call);
    return;
  }
  points->push_back(point);
}

}  // namespace ravenstore::elastic
