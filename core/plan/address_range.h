// Places in one range of addresses, in units of kExtentAlignment.
//
// A place follows from the order of the calls alone, never from what is resident. A program that
// repeats its calls therefore gets the same places again. A request of at least a page takes the
// fitting hole that was freed last, whose pages are likely to be mapped still. A smaller one takes
// the lowest fitting hole, so that small tensors gather in few pages. Free neighbours merge. The
// range grows at its end where no hole is large enough; a hole at the end is then part of what it
// grows by.
//
// A request may span a limited number of pages. It begins at a page border where it would span
// more. The bytes before the border are a hole.
//
// Source: address-ordered and last-freed first fit with immediate coalescing (Wilson et al.,
// "Dynamic Storage Allocation: A Survey and Critical Review", 1995); docs/decisions/0065 has the
// comparison with best fit. The holes are in search trees whose nodes have the largest hole of
// their subtree (Cormen et al., "Introduction to Algorithms", chapter "Augmenting Data
// Structures").
//
// Owns: the holes. Copies are independent: a forecast places future tensors in a copy.
// Units: bytes; sizes are rounded up to kExtentAlignment.
// Cost: O(log holes) a call. Threads: one at a time. Errors: none; misuse is a broken invariant.
#pragma once

#include <cstdint>
#include <ext/pb_ds/assoc_container.hpp>
#include <functional>
#include <optional>

#include "core/plan/places_in_use.h"
#include "core/types.h"

namespace ravenstore::core::plan {

class AddressRange {
 public:
  // `page`: the bytes of a page, a multiple of kExtentAlignment.
  explicit AddressRange(Bytes page) : page_(page) {}

  // A request: it spans at most `most` pages if any place of that size does. Where the place that
  // it would have is one that others still use, it has one that is not: a low hole, or the end.
  struct Request {
    Bytes size;  // more than 0
    uint32_t most = UINT32_MAX;
    const PlacesInUse* others = nullptr;  // null: there are none
    StreamId stream = kNoStream;          // of the request
  };
  // Returns the offset of a free place of `size` bytes.
  Bytes Allocate(const Request& request);
  // Takes this place if it is free. Returns whether it did. What is free afterwards is the same as
  // if Allocate() had chosen it.
  bool AllocateAt(Bytes offset, Bytes size);
  // Returns true if the next place of that request would end by `limit`.
  bool CanAllocate(const Request& request, Bytes limit) const;
  // REQUIRES: the place was allocated with this size.
  void Free(Bytes offset, Bytes size);

  // One more than the last byte that was ever allocated.
  Bytes end() const { return end_; }
  size_t holes() const { return by_offset_.size(); }

 private:
  struct Hole {
    Bytes offset;
    Bytes size;
    uint64_t freed;  // the number of the last free that made it larger

    Bytes end() const { return offset + size; }
  };
  // A node's metadata is the size of the largest hole in its subtree.
  template <typename ConstNode, typename Node, typename Compare, typename Allocator>
  struct LargestBelow {
    using metadata_type = Bytes;
    void operator()(Node node, ConstNode end);
    virtual ~LargestBelow() = default;
  };
  // In the order in which a request considers them.
  using Holes =
      __gnu_pbds::tree<uint64_t, Hole, std::less<uint64_t>, __gnu_pbds::rb_tree_tag, LargestBelow>;

  // The first hole of at least `size` bytes; nullptr: none is as large.
  static const Hole* FirstFit(const Holes& holes, Bytes size);
  // Where a place of `size` bytes begins in a hole at `offset`.
  Bytes BeginIn(Bytes offset, Bytes size, uint32_t most) const;
  // The hole for it, or the bytes that the range grows by, with the hole at its end. It may begin
  // before the place, and end after it.
  Hole HoleFor(const Request& request) const;
  // The same where others use no place, and where they use the preferred one.
  Hole PreferredHole(Bytes size, uint32_t most) const;
  Hole HoleAvoidingOthers(const Request& request) const;
  // The bytes of a hole, or of growth, that surround the place. nullopt: it is not free.
  std::optional<Hole> HoleAround(Bytes offset, Bytes end) const;
  // Takes the place out of the hole. The rest of the hole stays as holes.
  void Take(const Hole& hole, Bytes begin, Bytes end);
  bool IsOthers(const Request& request, Bytes hole) const;
  void Insert(const Hole& hole);
  void Erase(const Hole& hole);

  Holes by_offset_;
  Holes by_freed_;  // the last one first
  Bytes page_;
  Bytes end_;
  uint64_t frees_ = 0;
};

}  // namespace ravenstore::core::plan
