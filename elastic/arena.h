// Where allocations lie: one run of addresses, cut by best fit, in the order of streams.
//
// What is freed in the order of a stream serves that stream's next allocations at once, and others
// once what was enqueued before the free has passed. Neighbours that are free become one, unless
// they wait for different streams. A program that repeats its steps gets the same addresses in
// each, since nothing but the order of its calls decides (with one stream; with several, also what
// has passed).
//
// What lies under the addresses is the caller's business. Threads: one at a time.
#pragma once

#include <cuda.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/types.h"
#include "elastic/point.h"

namespace ravenstore::elastic {

class Arena {
 public:
  // Whether what was enqueued up to there is done.
  using Passed = std::function<bool(const Point&)>;

  Arena(CUdeviceptr begin, core::Bytes size, Passed passed);

  // The smallest free piece that holds `size` and can be used: by what is enqueued on the stream of
  // that index, or, with 0, by anything at once. Of equally small ones the lowest. nullopt: none.
  std::optional<CUdeviceptr> Take(core::Bytes size, uint32_t stream);
  // Free from now on, for those that are behind all `points`.
  // REQUIRES: taken, with this size.
  void Give(CUdeviceptr begin, core::Bytes size, std::vector<Point> points);

  CUdeviceptr begin() const { return begin_; }
  CUdeviceptr end() const { return begin_ + size_.count(); }

 private:
  struct Hole {
    core::Bytes size;
    std::vector<Point> points;  // that may not have passed, each of another stream
  };
  using Holes = std::map<CUdeviceptr, Hole>;

  bool Serves(Hole& hole, uint32_t stream);
  // One waits for nothing, or both for the same streams.
  bool CanJoin(Hole& one, Hole& other);
  void Prune(std::vector<Point>& points);
  void Insert(CUdeviceptr begin, Hole hole);
  Hole Remove(Holes::iterator hole);

  const CUdeviceptr begin_;
  const core::Bytes size_;
  const Passed passed_;
  Holes holes_;                                            // by begin
  std::set<std::pair<core::Bytes, CUdeviceptr>> by_size_;  // of the same
  CUdeviceptr fresh_;                                      // from here on nothing was ever taken
};

}  // namespace ravenstore::elastic
