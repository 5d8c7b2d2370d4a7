// Which tensors get slots of a shared page, and the names of those slots.
//
// A small tensor is one that fits a page. It may have a slot: an equal part of a page that holds
// tensors of one size class alone, or all of it. Its bytes move without the rest of the page, into
// any free slot of the class on a resident page. All other tensors lie in the range of addresses
// (address_range.h), in whole pages that they may share at their borders.
//
// Whether small tensors have slots is decided by their use (neighbour_use.h).
//
// Source: slabs of objects (Bonwick, "The Slab Allocator", 1994).
//
// Owns: SlotNames the free names. Units: bytes; slots per page. Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "core/types.h"

namespace ravenstore::core::plan {

struct SmallTensorRule {
  Bytes page;
  Bytes largest_slot = {};  // of a tensor that has one

  // How many slots of the tensor's size class a page has; 0: it has whole pages. The tensor fits a
  // slot of page / SlotsPerPage bytes, rounded down to kExtentAlignment.
  uint32_t SlotsPerPage(Bytes size) const;
  // Returns true if the tensor is small enough for a slot.
  bool IsSmall(Bytes size) const { return size <= page; }
};

// Names of slots: the lowest free name of the size class. A program that repeats its calls gets the
// same names again, as it gets the same addresses. A name says nothing of the slot's page.
class SlotNames {
 public:
  uint32_t Allocate(uint32_t slots_per_page);
  // Takes this name if it is free in the size class. Returns whether it was.
  bool AllocateAt(uint32_t name, uint32_t slots_per_page);
  // REQUIRES: the name was allocated in this size class.
  void Free(uint32_t name, uint32_t slots_per_page);

 private:
  std::map<uint32_t, std::set<uint32_t>> free_;  // by slots per page
  uint32_t end_ = 0;                             // names below it exist
};

}  // namespace ravenstore::core::plan
