#include "core/plan/address_range.h"

#include <iterator>

#include "core/check.h"

namespace ravenstore::core::plan {

Bytes AddressRange::Allocate(Bytes size) {
  RAVEN_CHECK(size > Bytes{});
  size = size.RoundUp(kExtentAlignment);
  if (const auto hole = Choose(size); hole != holes_.end()) {
    const Bytes offset = hole->first;
    Carve(hole, offset, size);
    return offset;
  }
  Bytes offset = end_;
  if (!holes_.empty()) {
    const auto last = std::prev(holes_.end());
    if (last->first + last->second.size == end_) offset = last->first;
  }
  GrowTo(offset + size);
  Carve(std::prev(holes_.end()), offset, size);
  return offset;
}

AddressRange::Holes::iterator AddressRange::Choose(Bytes size) {
  auto best = holes_.end();
  for (auto fit = by_size_.lower_bound({size, Bytes{}}); fit != by_size_.end(); ++fit) {
    const auto hole = holes_.find(fit->second);
    const bool better =
        best == holes_.end() ||
        (size >= large_ ? hole->second.freed > best->second.freed : hole->first < best->first);
    if (better) best = hole;
  }
  return best;
}

bool AddressRange::AllocateAt(Bytes offset, Bytes size) {
  RAVEN_CHECK(size > Bytes{});
  size = size.RoundUp(kExtentAlignment);
  if (offset + size > end_) GrowTo(offset + size);
  auto hole = holes_.upper_bound(offset);
  if (hole == holes_.begin()) return false;
  --hole;
  if (hole->first + hole->second.size < offset + size) return false;
  Carve(hole, offset, size);
  return true;
}

void AddressRange::Free(Bytes offset, Bytes size) {
  size = size.RoundUp(kExtentAlignment);
  RAVEN_CHECK(offset + size <= end_);
  auto next = holes_.lower_bound(offset);
  RAVEN_CHECK(next == holes_.end() || offset + size <= next->first);
  if (next != holes_.end() && next->first == offset + size) {
    size += next->second.size;
    next = Erase(next);
  }
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    RAVEN_CHECK(before->first + before->second.size <= offset);
    if (before->first + before->second.size == offset) {
      offset = before->first;
      size += before->second.size;
      Erase(before);
    }
  }
  Insert(offset, {size, ++frees_});
}

void AddressRange::Insert(Bytes offset, const Hole& hole) {
  holes_.emplace(offset, hole);
  by_size_.emplace(hole.size, offset);
}

AddressRange::Holes::iterator AddressRange::Erase(Holes::iterator hole) {
  by_size_.erase({hole->second.size, hole->first});
  return holes_.erase(hole);
}

void AddressRange::Carve(Holes::iterator hole, Bytes offset, Bytes size) {
  const Bytes begin = hole->first;
  const Bytes end = begin + hole->second.size;
  const uint64_t freed = hole->second.freed;
  Erase(hole);
  if (begin < offset) Insert(begin, {offset - begin, freed});
  if (offset + size < end) Insert(offset + size, {end - offset - size, freed});
}

void AddressRange::GrowTo(Bytes end) {
  const Bytes begin = end_;
  end_ = end;
  Free(begin, end - begin);
}

}  // namespace ravenstore::core::plan
