// Puts and frees that streams have not passed, in the order of the calls of each stream.
//
// A free is the last end of its range: it waits for all others. Streams order them by events that
// are not seen here.
//
// Owns: the ends. Units: bytes. Threads: one at a time (the engine's lock). Cost: O(1) an end.
#pragma once

#include <deque>
#include <vector>

#include "core/schedule/scheduled_client.h"
#include "core/types.h"
#include "elastic/point.h"
#include "elastic/streams.h"

namespace ravenstore::elastic {

class CallEnds {
 public:
  // The streams outlive it.
  explicit CallEnds(Streams* streams) : streams_(streams) {}

  // `bytes`: of the range. The point and the others are to pass.
  void Add(const core::CallEnd& end, core::Bytes bytes, const Point& point,
           std::vector<Point> others);
  // Appends the ends that their streams have passed.
  void TakePassed(std::vector<core::CallEnd>* passed);
  bool empty() const { return count_ == 0; }
  // Of ranges whose free has not passed.
  core::Bytes freed() const { return freed_; }

 private:
  struct Ended {
    core::CallEnd end;
    core::Bytes bytes;
    Point point;
    std::vector<Point> others;
  };
  bool HasPassed(Ended* ended) const;

  Streams* const streams_;
  std::vector<std::deque<Ended>> ends_;  // by stream
  std::vector<uint32_t> open_;           // ends, by range
  size_t count_ = 0;
  core::Bytes freed_;
};

}  // namespace ravenstore::elastic
