// A pool where tensors lie that are away from their devices: one range that grows and shrinks at
// its end, chunk by chunk. The host pool does; a pool of fixed size is one chunk from the
// beginning.
//
// The caller makes and destroys the chunks and says when that is done; what lives in the pool stays
// where it is meanwhile.
//
// Owns: the bookkeeping only. Threads: one at a time. Cost: as of core/extents.h.
#pragma once

#include <optional>
#include <vector>

#include "core/extents.h"
#include "core/types.h"

namespace ravenstore::core {

class AwayPool : private ExtentMap {
 public:
  // Addresses [0, range), none of them with memory. Places and sizes there are multiples of
  // `granularity`, as are its chunks: a power of two and at least kExtentAlignment.
  explicit AwayPool(Bytes range, Bytes granularity = kExtentAlignment)
      : ExtentMap(range), granularity_(granularity) {}

  using ExtentMap::changes;
  using ExtentMap::Free;
  using ExtentMap::held;
  using ExtentMap::LargestHole;
  using ExtentMap::OffsetOf;
  using ExtentMap::OwnerOf;
  using ExtentMap::SizeOf;
  using ExtentMap::used;

  std::optional<Block> Allocate(Bytes size, uint32_t owner) {
    return ExtentMap::Allocate(size.RoundUp(granularity_), owner);
  }

  // The chunk behind the end that is to be made; the pool is growing until that is done.
  // REQUIRES: it neither grows nor shrinks; `size` is not zero.
  Range Grow(Bytes size);
  void Grown(const Range& chunk);
  void GrowFailed() { coming_ = Bytes{0}; }
  bool IsGrowing() const { return coming_ > Bytes{0}; }

  // Takes the last chunk out of the pool, so that it can be destroyed; nullopt where something
  // lives there, or there is none. REQUIRES: the pool is not growing.
  std::optional<Range> Shrink();
  // That chunk is gone.
  void Shrunk(const Range& chunk);

  // There is memory up to here; of what it shrank by, so much still is there, behind that.
  Bytes end() const { return end_; }
  Bytes leaving() const { return leaving_; }
  // All that there is, or that is being made.
  Bytes committed() const { return end_ + leaving_ + coming_; }

  // Aborts unless the chunks are what the extents are in; O(n).
  void CheckInvariants() const;

 private:
  const Bytes granularity_;
  std::vector<Bytes> chunks_;  // where each begins, in order
  Bytes end_;
  Bytes coming_;
  Bytes leaving_;
};

}  // namespace ravenstore::core
