// How a client's memory goes where it holds more than it may: the share has fallen, or the client
// is gone.
//
// Free and dead pages go first, then pages of slots whose slots fit on others, then idle units. The
// pages of units that are on their way out go when they have left.
//
// Owns: nothing. Units: pages. Threads: any. Errors: none. Cost: O(1).
#pragma once

#include <cstdint>

namespace ravenstore::core::decide {

struct HeldMemory {
  uint32_t surplus = 0;   // pages beyond the share
  bool has_free = false;  // a page is free, or dead
  uint32_t spare = 0;     // pages that would be empty if slots were on the fewest pages
  bool can_empty = true;  // a page of slots may be emptied: no call uses its slots
  uint64_t leaving = 0;   // units on their way out
};

struct Retirement {
  enum class Step : uint8_t { kNone, kRelease, kEmptySlots, kLeave };
  Step step = Step::kNone;
  uint64_t pages = 0;  // of kLeave: how many are to leave
};

// The next step; the view of it changes with each.
Retirement NextRetirement(const HeldMemory& held);

}  // namespace ravenstore::core::decide
