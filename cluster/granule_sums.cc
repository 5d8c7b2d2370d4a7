#include "cluster/granule_sums.h"

#include "cluster/footprint.h"
#include "core/check.h"

namespace ravenstore::cluster {

GranuleSums::GranuleSums(size_t granules, core::Bytes granule)
    : whole_(static_cast<uint32_t>(granule.count())), hashes_(granules), acknowledged_(granules) {
  RAVEN_CHECK(granule.count() == whole_);
}

GranuleSum GranuleSums::operator[](size_t index) const {
  if (!acknowledged_[index]) return {};
  const auto shorter = shorter_.find(static_cast<uint32_t>(index));
  return {.hash = hashes_[index], .length = shorter == shorter_.end() ? whole_ : shorter->second};
}

void GranuleSums::Set(size_t index, GranuleSum sum) {
  RAVEN_CHECK(sum.length <= whole_);
  hashes_[index] = sum.hash;
  acknowledged_[index] = sum.length > 0;
  if (sum.length > 0 && sum.length < whole_) {
    shorter_[static_cast<uint32_t>(index)] = sum.length;
  } else {
    shorter_.erase(static_cast<uint32_t>(index));
  }
}

std::vector<GranuleSum> GranuleSums::Range(size_t begin, size_t end) const {
  std::vector<GranuleSum> sums;
  for (size_t i = begin; i < end; ++i) sums.push_back((*this)[i]);
  return sums;
}

core::Bytes GranuleSums::footprint() const {
  const core::Bytes bits = Allocated((acknowledged_.capacity() + 7) / 8);
  return Array(hashes_) + bits + TreeEntry<std::pair<const uint32_t, uint32_t>>() * shorter_.size();
}

}  // namespace ravenstore::cluster
