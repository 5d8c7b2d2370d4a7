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

bool CopyPools::CanLeave(Bytes bytes) const {
  for (PoolNumber pool = 0; pool < size(); ++pool) {
    if (CanLeave(pool, bytes)) return true;
  }
  return false;
}

bool CopyPools::MayCreate() const {
  bool may_create = true;
  for (PoolNumber pool = 0; pool < size(); ++pool) {
    if (pools_[pool].may_create && CanLeave(pool, page_)) return true;
    may_create &= pools_[pool].may_create;
  }
  return may_create;
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
