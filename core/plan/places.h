// The place of each tensor of a client: in a range of addresses or in a slot, and its units.
//
// Owns: both lists of free places. Copies are independent: a forecast places future tensors in a
// copy. Units: bytes. Threads: one at a time. Cost: O(log tensors) a call.
#pragma once

#include <cstdint>

#include "core/plan/address_range.h"
#include "core/plan/small_tensors.h"
#include "core/plan/units.h"
#include "core/types.h"

namespace ravenstore::core::plan {

struct Place {
  uint64_t at = 0;              // the offset in the range in bytes, or the name of the slot
  uint32_t slots_per_page = 0;  // 0: in the range

  bool operator==(const Place&) const = default;
};

class Places {
 public:
  // `rule.page` is a power of two.
  explicit Places(const SmallTensorRule& rule) : rule_(rule), range_(rule.page) {}

  // Tensors up to this size that are placed from now on have slots. Others keep their places.
  void SetLargestSlot(Bytes size) { rule_.largest_slot = size; }
  // Tensors that are placed from now on span at most that many pages if they can.
  void SetMost(uint32_t pages) { most_ = pages; }
  const SmallTensorRule& rule() const { return rule_; }

  // `others`: places in the range that are free and not to be had; of work on `stream`.
  Place Allocate(Bytes size, const PlacesInUse* others = nullptr, StreamId stream = kNoStream);
  // Returns true if it has a place in the range before `limit`. Slots have no addresses there.
  bool CanAllocate(const AddressRange::Request& request, Bytes limit) const {
    return range_.CanAllocate(request, limit);
  }
  // Takes this slot if it is free and of the size class of `size`. Returns whether it did. A place
  // in the range is never taken: it follows from the order of the calls alone.
  bool AllocateAt(const Place& place, Bytes size);
  // Takes the place in the range that Allocate() of another list of the same calls has chosen.
  // Returns false if it is not free.
  bool AllocateInRange(const Place& place, Bytes size) {
    return place.slots_per_page == 0 && range_.AllocateAt(Bytes(place.at), size);
  }
  // REQUIRES: the place was allocated with this size.
  void Free(const Place& place, Bytes size);

  UnitSpan UnitsOf(const Place& place, Bytes size) const;
  // Where the tensor begins in its first unit.
  Bytes OffsetOf(const Place& place) const {
    return place.slots_per_page > 0 ? Bytes{} : Bytes(place.at % rule_.page.count());
  }
  // The bytes of the tensor in its i-th unit.
  Bytes BytesIn(const Place& place, Bytes size, uint32_t i) const;
  Bytes page() const { return rule_.page; }
  Bytes range_end() const { return range_.end(); }

 private:
  SmallTensorRule rule_;
  AddressRange range_;
  uint32_t most_ = UINT32_MAX;  // pages that a tensor may span
  SlotNames names_;
};

}  // namespace ravenstore::core::plan
