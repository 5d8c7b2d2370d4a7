// Places in a range of addresses that are free by the order of a client's calls, and that its
// streams still use: they have not come to the frees.
//
// Later work of the same stream may have such a place immediately, since it is done after the work
// before it. Work of another stream may not.
//
// Owns: the list. Units: bytes. Threads: one at a time. Errors: none. Cost: O(1) where all places
// are of the stream that asks, else O(places); Remove() O(frees of the stream that are out of
// order).
#pragma once

#include <cstddef>
#include <deque>
#include <map>

#include "core/types.h"

namespace ravenstore::core::plan {

class PlacesInUse {
 public:
  // A search of one stream looks at all places of others. So it should have few of several streams,
  // but all that one stream has, which may be thousands of frees behind.
  bool HasRoomFor(StreamId stream) const {
    const bool is_only = of_.empty() || (of_.size() == 1 && of_.begin()->first == stream);
    return size_ < (is_only ? kMostOfOne : kMost);
  }
  // REQUIRES: the stream is one, and no other stream uses a part of the place.
  void Add(Bytes offset, Bytes size, StreamId stream);
  // The stream does not use it any more: the earliest such place that was added.
  void Remove(Bytes offset, Bytes size, StreamId stream);
  // Whether a stream other than this one uses a part of the place.
  bool HasOthers(Bytes offset, Bytes size, StreamId stream) const;
  size_t size() const { return size_; }

 private:
  static constexpr size_t kMost = 2048;
  static constexpr size_t kMostOfOne = size_t{1} << 16;

  struct Place {
    Bytes offset;
    Bytes size;

    bool operator==(const Place&) const = default;
  };

  std::map<StreamId, std::deque<Place>> of_;  // in the order of the frees; none is empty
  size_t size_ = 0;
};

}  // namespace ravenstore::core::plan
