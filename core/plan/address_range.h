// Places in one range of addresses, in units of kExtentAlignment.
//
// A place follows from the order of the calls alone, never from what is resident. A program that
// repeats its calls therefore gets the same places again. A request of at least `large` bytes takes
// the fitting hole that was freed last, whose pages are likely to be mapped still. A smaller one
// takes the lowest fitting hole, so that small tensors gather in few pages. Free neighbours merge.
// The range grows at its end where no hole is large enough; a hole at the end is then part of what
// it grows by.
//
// Source: address-ordered and last-freed first fit with immediate coalescing (Wilson et al.,
// "Dynamic Storage Allocation: A Survey and Critical Review", 1995); docs/decisions/0065 has the
// comparison with best fit.
//
// Owns: the list of holes. Copies are independent: a forecast places future tensors in a copy.
// Units: bytes; sizes are rounded up to kExtentAlignment.
// Cost: O(log holes) a call; Allocate looks at each hole that fits. Threads: one at a time. Errors:
// none; misuse is a broken invariant.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "core/types.h"

namespace ravenstore::core::plan {

class AddressRange {
 public:
  explicit AddressRange(Bytes large) : large_(large) {}

  // Returns the offset of a free place of `size` bytes. REQUIRES: size > 0.
  Bytes Allocate(Bytes size);
  // Takes the place at `offset` if all of it is free. Returns whether it was.
  bool AllocateAt(Bytes offset, Bytes size);
  // REQUIRES: the place was allocated with this size.
  void Free(Bytes offset, Bytes size);

  // One more than the last byte that was ever allocated.
  Bytes end() const { return end_; }
  size_t holes() const { return holes_.size(); }

 private:
  struct Hole {
    Bytes size;
    uint64_t freed;  // the number of the last free that made it larger
  };
  using Holes = std::map<Bytes, Hole>;  // by offset

  // The hole for a request; holes_.end(): none fits.
  Holes::iterator Choose(Bytes size);
  void Insert(Bytes offset, const Hole& hole);
  Holes::iterator Erase(Holes::iterator hole);
  // The part [offset, offset + size) of the hole is allocated now.
  void Carve(Holes::iterator hole, Bytes offset, Bytes size);
  void GrowTo(Bytes end);

  Holes holes_;
  std::set<std::pair<Bytes, Bytes>> by_size_;  // size, offset
  Bytes large_;
  Bytes end_;
  uint64_t frees_ = 0;
};

}  // namespace ravenstore::core::plan
