#include "core/plan/address_range.h"

#include <iterator>

#include "core/check.h"

namespace ravenstore::core::plan {

Bytes AddressRange::Allocate(Bytes size) {
  RAVEN_CHECK(size > Bytes{});
  size = size.RoundUp(kExtentAlignment);
  const auto fit = by_size_.lower_bound({size, Bytes{}});
  if (fit != by_size_.end()) {
    const Bytes offset = fit->second;
    Carve(holes_.find(offset), offset, size);
    return offset;
  }
  Bytes offset = end_;
  if (!holes_.empty()) {
    const auto last = std::prev(holes_.end());
    if (last->first + last->second == end_) offset = last->first;
  }
  GrowTo(offset + size);
  Carve(std::prev(holes_.end()), offset, size);
  return offset;
}

bool AddressRange::AllocateAt(Bytes offset, Bytes size) {
  RAVEN_CHECK(size > Bytes{});
  size = size.RoundUp(kExtentAlignment);
  if (offset + size > end_) GrowTo(offset + size);
  auto hole = holes_.upper_bound(offset);
  if (hole == holes_.begin()) return false;
  --hole;
  if (hole->first + hole->second < offset + size) return false;
  Carve(hole, offset, size);
  return true;
}

void AddressRange::Free(Bytes offset, Bytes size) {
  size = size.RoundUp(kExtentAlignment);
  RAVEN_CHECK(offset + size <= end_);
  auto next = holes_.lower_bound(offset);
  RAVEN_CHECK(next == holes_.end() || offset + size <= next->first);
  if (next != holes_.end() && next->first == offset + size) {
    size += next->second;
    next = Erase(next);
  }
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    RAVEN_CHECK(before->first + before->second <= offset);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      Erase(before);
    }
  }
  Insert(offset, size);
}

void AddressRange::Insert(Bytes offset, Bytes size) {
  holes_.emplace(offset, size);
  by_size_.emplace(size, offset);
}

AddressRange::Holes::iterator AddressRange::Erase(Holes::iterator hole) {
  by_size_.erase({hole->second, hole->first});
  return holes_.erase(hole);
}

void AddressRange::Carve(Holes::iterator hole, Bytes offset, Bytes size) {
  const Bytes begin = hole->first;
  const Bytes end = begin + hole->second;
  Erase(hole);
  if (begin < offset) Insert(begin, offset - begin);
  if (offset + size < end) Insert(offset + size, end - offset - size);
}

void AddressRange::GrowTo(Bytes end) {
  const Bytes begin = end_;
  end_ = end;
  Free(begin, end - begin);
}

}  // namespace ravenstore::core::plan
