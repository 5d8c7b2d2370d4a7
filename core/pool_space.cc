#include "core/pool_space.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace ravenstore::core {

namespace {
// Ranges without memory that are looked at in one search.
constexpr int kRangesTried = 64;
}  // namespace

std::optional<PoolSpace::SlabPlace> PoolSpace::PlaceForSlab(Bytes need, Bytes granularity) const {
  std::optional<SlabPlace> best;
  const auto consider = [&](Bytes offset, Bytes size) {
    const Bytes before = FreeBefore(offset);
    Bytes missing = std::max(Minus(need, before).RoundUp(granularity), granularity);
    Bytes reach = before + missing;
    if (missing > size) {  // all of it, if what lies behind takes the rest
      missing = size;
      reach = before + size + FreeFrom(offset + size);
    }
    if (reach >= need && (!best || missing < best->missing))
      best = SlabPlace{offset, missing, size, {offset - before, reach}};
  };
  const auto lowest = AbsentFrom(Bytes{0});
  if (lowest && lowest->second == range()) {
    const Bytes middle = Bytes(lowest->second.count() / 2).RoundDown(granularity);
    consider(middle, lowest->second - middle);
  }
  // None begins at 0: that is what lies below the first slab.
  auto absent = AbsentFrom(granularity);
  for (int i = 0; i < kRangesTried && absent; ++i) {
    const auto [offset, size] = *absent;
    consider(offset, size);
    absent = AbsentFrom(offset + size);
  }
  if (!best && lowest) consider(lowest->first, lowest->second);
  return best;
}

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
