#include "core/plan/copy_pools.h"

#include "core/check.h"

namespace ravenstore::core::plan {

void CopyPools::Add(PoolNumber pool, Bytes bytes) {
  counts_[pool].used += bytes;
}

void CopyPools::Remove(PoolNumber pool, Bytes bytes) {
  RAVEN_CHECK(counts_[pool].used >= bytes);
  counts_[pool].used -= bytes;
}

Bytes CopyPools::used() const {
  Bytes all;
  for (const Counts& counts : counts_) all += counts.used;
  return all;
}

uint64_t CopyPools::PagesMost() const {
  uint64_t pages = 0;
  for (const CopyPool& pool : pools_) pages += pool.capacity.count() / page_.count();
  return pages;
}

}  // namespace ravenstore::core::plan
