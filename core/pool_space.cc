#include "core/pool_space.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace ravenstore::core {

void PoolSpace::Came(const Range& slab) {
  awaited_ = Bytes{0};
  most_ = std::min(kRangeMax, most_ * 2);
  AddChunk(slab.first, slab.second);
  slabs_.push_back(slab);
}

Bytes PoolSpace::Failed(Bytes least, Bytes granularity) {
  const Bytes failed = std::exchange(awaited_, Bytes{0});
  most_ = std::max(least, Bytes(failed.count() / 2).RoundUp(granularity));
  return failed;
}

void PoolSpace::Close(const Range& slab) {
  std::erase(slabs_, slab);
  CloseChunk(slab.first, slab.second);
  closed_.push_back(slab);
}

void PoolSpace::Open(const Range& slab) {
  OpenChunk(slab.first, slab.second);
  std::erase(closed_, slab);
  slabs_.push_back(slab);
}

void PoolSpace::LetGo(const Range& slab, Tick until) {
  std::erase(closed_, slab);
  removals_[slab.first] = {slab.second, until};
}

Bytes PoolSpace::NoteOverdue(Tick now) {
  Bytes overdue;
  for (auto& [offset, slab] : removals_) {
    if (slab.overdue || now < slab.until) continue;
    slab.overdue = true;
    overdue += slab.size;
  }
  return overdue;
}

std::optional<PoolSpace::Removal> PoolSpace::Gone(Bytes offset) {
  const auto found = removals_.find(offset);
  if (found == removals_.end()) return std::nullopt;
  const Removal removal = found->second;
  RemoveChunk(offset, removal.size);
  removals_.erase(found);
  return removal;
}

void PoolSpace::CheckInvariants() const {
  ExtentMap::CheckInvariants();
  Bytes held;
  for (const Range& slab : slabs_) held += slab.second;
  for (const Range& slab : closed_) held += slab.second;
  for (const auto& [offset, slab] : removals_) held += slab.size;
  RAVEN_CHECK(held >= ExtentMap::held());
}

}  // namespace ravenstore::core
