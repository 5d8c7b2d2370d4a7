// A pool where tensors lie that are away from their devices: one range of addresses with memory
// that comes and goes chunk by chunk. The host pool grows and shrinks at its end; of harvested and
// of lent memory any chunk may have to go back; a pool of fixed size is one chunk from the
// beginning.
//
// The caller makes and destroys the chunks and says when that is done; what lives in the pool stays
// where it is meanwhile.
//
// Owns: the bookkeeping only. Threads: one at a time. Cost: as of core/extents.h, and O(chunks) for
// one that comes, closes, opens or goes.
#pragma once

#include <optional>
#include <vector>

#include "core/extents.h"
#include "core/types.h"

namespace ravenstore::core {

class AwayPool : private ExtentMap {
 public:
  using ExtentMap::Block;
  using ExtentMap::Kind;

  // Addresses [0, range), none of them with memory. Places and sizes there are multiples of
  // `granularity`, as are its chunks: a power of two and at least kExtentAlignment.
  explicit AwayPool(Bytes range, Bytes granularity = kExtentAlignment)
      : ExtentMap(range), granularity_(granularity) {}

  using ExtentMap::After;
  using ExtentMap::At;
  using ExtentMap::changes;
  using ExtentMap::Free;
  using ExtentMap::held;
  using ExtentMap::IsFree;
  using ExtentMap::KindOf;
  using ExtentMap::LargestHole;
  using ExtentMap::OffsetOf;
  using ExtentMap::OwnerOf;
  using ExtentMap::range;
  using ExtentMap::SizeOf;
  using ExtentMap::used;

  std::optional<Block> Allocate(Bytes size, uint32_t owner) {
    return ExtentMap::Allocate(size.RoundUp(granularity_), owner);
  }

  // The chunk that is to be made, at the lowest addresses without memory and so no larger than
  // these; the pool is growing until that is done. REQUIRES: it is not growing; `size` is not zero,
  // and so much is without memory somewhere.
  Range Grow(Bytes size);
  void Grown(const Range& chunk);
  void GrowFailed() { coming_ = {}; }
  // Of size 0 while it is not growing.
  const Range& coming() const { return coming_; }
  bool IsGrowing() const { return coming_.second > Bytes{0}; }

  // The chunks that are there and not closed, by offset, and what they come to.
  const std::vector<Range>& chunks() const { return chunks_; }
  Bytes size() const { return size_; }
  // Of those the one that begins at `offset`.
  std::optional<Range> OpenAt(Bytes offset) const;
  // Whether one that begins there is open, closed or being made.
  bool Has(Bytes offset) const;
  // In a closed chunk nothing new lies; once it is emptied it is let go, or it opens again.
  // REQUIRES for Close: it is one of chunks(). For the others: it is closed; for LetGo: and
  // emptied.
  void Close(const Range& chunk);
  void Open(const Range& chunk);
  const std::vector<Range>& closed() const { return closed_; }
  bool IsEmptied(const Range& chunk) const { return IsRetired(chunk.first, chunk.second); }
  void LetGo(const Range& chunk);
  // Lets go of the last chunk; nullopt where something lives there, or there is none. REQUIRES: the
  // pool is not growing.
  std::optional<Range> Shrink();
  // A chunk that was let go is gone; or cannot go: then it counts for good.
  void Shrunk(const Range& chunk);
  void ShrinkFailed(Bytes bytes);
  // What was let go and is not gone, but may go.
  Bytes leaving() const { return leaving_; }
  // What was let go and cannot go.
  Bytes stuck() const { return stuck_; }
  // All that there is, or that is being made.
  Bytes committed() const;

  // Aborts unless the chunks are what the extents are in; O(n).
  void CheckInvariants() const;

 private:
  const Bytes granularity_;
  std::vector<Range> chunks_;
  std::vector<Range> closed_;
  Bytes size_;
  Range coming_;
  Bytes leaving_;
  Bytes stuck_;
};

}  // namespace ravenstore::core
