#include "core/plan/places.h"

#include <algorithm>

namespace ravenstore::core::plan {

Place Places::Allocate(Bytes size, const PlacesInUse* others, StreamId stream) {
  const uint32_t slots = rule_.SlotsPerPage(size);
  if (slots > 0) return {names_.Allocate(slots), slots};
  const Bytes at =
      range_.Allocate({.size = size, .most = most_, .others = others, .stream = stream});
  return {at.count(), 0};
}

bool Places::AllocateAt(const Place& place, Bytes size) {
  const uint32_t slots = rule_.SlotsPerPage(size);
  if (slots == 0 || slots != place.slots_per_page) return false;
  return names_.AllocateAt(static_cast<uint32_t>(place.at), slots);
}

void Places::Free(const Place& place, Bytes size) {
  if (place.slots_per_page > 0) {
    names_.Free(static_cast<uint32_t>(place.at), place.slots_per_page);
  } else {
    range_.Free(Bytes(place.at), size);
  }
}

UnitSpan Places::UnitsOf(const Place& place, Bytes size) const {
  if (place.slots_per_page > 0)
    return {static_cast<Unit>(place.at) * 2 + 1, 1, place.slots_per_page};
  const uint64_t first = place.at / rule_.page.count();
  const uint64_t last = (place.at + size.count() - 1) / rule_.page.count();
  return {static_cast<Unit>(first) * 2, static_cast<uint32_t>(last - first + 1), 1};
}

Bytes Places::BytesIn(const Place& place, Bytes size, uint32_t i) const {
  if (place.slots_per_page > 0) return size;
  const uint64_t page = rule_.page.count();
  const uint64_t begin = (place.at / page + i) * page;
  return Bytes(std::min(begin + page, place.at + size.count()) - std::max(begin, place.at));
}

}  // namespace ravenstore::core::plan
