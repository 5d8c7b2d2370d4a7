#include "core/plan/small_tensors.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "core/tuned.h"

namespace ravenstore::core::plan {

uint32_t SmallTensorRule::SlotsPerPage(Bytes size) const {
  if (size > largest_slot) return 0;
  // Slots begin at multiples of kExtentAlignment.
  const Bytes slot = std::max(size, Bytes(1)).RoundUp(kExtentAlignment);
  const uint64_t fit = page.count() / slot.count();
  const int low_bits = std::max(0, static_cast<int>(std::bit_width(fit)) - kSlotBits);
  return static_cast<uint32_t>(fit >> low_bits << low_bits);
}

uint32_t SlotNames::Allocate(uint32_t slots_per_page) {
  std::set<uint32_t>& names = free_[slots_per_page];
  if (names.empty()) return end_++;
  return names.extract(names.begin()).value();
}

bool SlotNames::AllocateAt(uint32_t name, uint32_t slots_per_page) {
  std::set<uint32_t>& names = free_[slots_per_page];
  while (end_ <= name) names.insert(end_++);
  return names.erase(name) > 0;
}

void SlotNames::Free(uint32_t name, uint32_t slots_per_page) {
  RAVEN_CHECK(name < end_);
  RAVEN_CHECK(free_[slots_per_page].insert(name).second);
}

}  // namespace ravenstore::core::plan
