// Places in one range of addresses, in units of kExtentAlignment.
//
// A place follows from the order of the calls alone, never from what is resident. A program that
// repeats its calls therefore gets the same places again. Best fit: a request takes the smallest
// hole that holds it, of equal ones the lowest. Free neighbours merge. The range grows at its end
// where no hole is large enough; a hole at the end is then part of what it grows by.
//
// Source: address-ordered best fit with immediate coalescing (Wilson et al., "Dynamic Storage
// Allocation: A Survey and Critical Review", 1995).
//
// Owns: the list of holes. Copies are independent: a forecast places future tensors in a copy.
// Units: bytes; sizes are rounded up to kExtentAlignment.
// Cost: O(log holes) a call. Threads: one at a time. Errors: none; misuse is a broken invariant.
#pragma once

#include <map>
#include <set>
#include <utility>

#include "core/types.h"

namespace ravenstore::core::plan {

class AddressRange {
 public:
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
  using Holes = std::map<Bytes, Bytes>;  // offset, size

  void Insert(Bytes offset, Bytes size);
  Holes::iterator Erase(Holes::iterator hole);
  // The part [offset, offset + size) of the hole is no longer free.
  void Carve(Holes::iterator hole, Bytes offset, Bytes size);
  void GrowTo(Bytes end);

  Holes holes_;
  std::set<std::pair<Bytes, Bytes>> by_size_;  // size, offset
  Bytes end_;
};

}  // namespace ravenstore::core::plan
