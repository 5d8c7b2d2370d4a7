// What one client has of one pool: slabs that come and go, the places of tensors in them, and the
// holes between.
//
// A slab is awaited, comes or does not. To be given back it is closed: what lies there stays, and
// nothing new does. Once it holds nothing it is let go, and is gone when its client has unmapped
// it; else it is opened again.
//
// Owns: the bookkeeping only. Threads: one at a time. Cost: as of core/extents.h, and O(slabs) for
// a slab that closes or opens.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "core/extents.h"
#include "core/types.h"

namespace ravenstore::core {

class PoolSpace : private ExtentMap {
 public:
  // A slab that is let go and not gone yet.
  struct Removal {
    Bytes size;
    Tick until{};          // its client should have unmapped it by then
    bool overdue = false;  // and has not
  };

  // Addresses [0, range), none of them with memory.
  explicit PoolSpace(Bytes range) : ExtentMap(range) {}

  using ExtentMap::AbsentFrom;
  using ExtentMap::After;
  using ExtentMap::Allocate;
  using ExtentMap::AllocateAt;
  using ExtentMap::AllocateHighest;
  using ExtentMap::AllocateInMiddle;
  using ExtentMap::At;
  using ExtentMap::Before;
  using ExtentMap::changes;
  using ExtentMap::Free;
  using ExtentMap::FreeBefore;
  using ExtentMap::FreeFrom;
  using ExtentMap::FreeFront;
  using ExtentMap::held;
  using ExtentMap::IsFree;
  using ExtentMap::KindOf;
  using ExtentMap::LargestHole;
  using ExtentMap::OffsetOf;
  using ExtentMap::OwnerOf;
  using ExtentMap::range;
  using ExtentMap::SetOwner;
  using ExtentMap::SizeOf;
  using ExtentMap::used;
  const ExtentMap& map() const { return *this; }

  // Those that are there and neither closed nor let go; in no order.
  const std::vector<Range>& slabs() const { return slabs_; }

  // Where a slab would serve a request: how much of it is missing there, how much room there is,
  // and what would then be free contiguously.
  struct SlabPlace {
    Bytes offset;
    Bytes missing;
    Bytes room;
    Range reach;
  };
  // The place where the least is missing for `need`, in multiples of `granularity`: some 64 places
  // are looked at. The first slab lies in the middle of the addresses, those that follow behind
  // what is there, and below the first what finds no other place.
  std::optional<SlabPlace> PlaceForSlab(Bytes need, Bytes granularity) const;

  // A slab of so many bytes is being made. REQUIRES: no other is.
  void Await(Bytes size) { awaited_ = size; }
  // Bytes of it; 0: none is being made.
  Bytes awaited() const { return awaited_; }
  void Came(const Range& slab);
  // It did not come: the next may be half of it, and no less than `least`. Returns its bytes.
  Bytes Failed(Bytes least, Bytes granularity);
  // No slab is to be larger after one failed, until others come again: other processes hold memory
  // that the store does not know of.
  Bytes most() const { return most_; }

  // REQUIRES: `slab` is one of slabs().
  void Close(const Range& slab);
  const std::vector<Range>& closed() const { return closed_; }
  // Whether nothing lives in the closed slab any more.
  bool IsEmptied(const Range& slab) const { return IsRetired(slab.first, slab.second); }
  // REQUIRES, both: it is closed; for LetGo: and emptied.
  void Open(const Range& slab);
  void LetGo(const Range& slab, Tick until);
  // By offset.
  const std::map<Bytes, Removal>& removals() const { return removals_; }
  // Notes those that should be gone by now, and says how much that is.
  Bytes NoteOverdue(Tick now);
  // Its client has unmapped it; nullopt where none at that offset was let go.
  std::optional<Removal> Gone(Bytes offset);

  // Aborts unless slabs and extents agree; O(n).
  void CheckInvariants() const;

 private:
  std::vector<Range> slabs_;
  std::vector<Range> closed_;
  std::map<Bytes, Removal> removals_;
  Bytes awaited_;
  Bytes most_ = kRangeMax;
};

}  // namespace ravenstore::core
