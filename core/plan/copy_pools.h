// The pools that keep the bytes of pages which are not on the device: pinned host memory, the idle
// memory of a peer device, a file, memory of other nodes.
//
// Pools are ordered by the price of the way back, the cheapest first. A page's copy is in one pool.
// Each pool has a link of its own in each direction.
//
// CopyPools counts the bytes of a client's copies in each pool. A copy is redundant while its page
// is resident too; its room can be used for another copy. The capacity of a pool may change, and
// may fall below what its copies take: the pool then has no room.
//
// Owns: the counts. Units: bytes, bytes per second. Threads: one at a time. Errors: none; a copy
// that has no room is a broken invariant. Cost: O(1) a call.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/types.h"

namespace ravenstore::core::plan {

using PoolNumber = uint8_t;
// Of a unit without a copy, or that may be copied to any pool.
inline constexpr PoolNumber kNoPool = std::numeric_limits<PoolNumber>::max();

struct CopyPool {
  Bytes capacity{UINT64_MAX};
  double in_rate = 0;    // towards the device
  double out_rate = 0;   // from the device
  Duration per_copy{0};  // added to the time of its bytes
  bool ahead = true;     // units that stay may be copied there: no other client waits for the room
  // Room for exchanges, where a unit leaves for another that a call waits for. No unit leaves there
  // for a create; by a plan units leave there if no pool has other room.
  Bytes kept{};
  bool exchanges = false;  // such a call waits
  bool may_create = true;  // no exchange uses that room: pages may be created

  Duration InOf(Bytes bytes) const { return TimeOf(bytes, in_rate); }
  Duration OutOf(Bytes bytes) const { return TimeOf(bytes, out_rate); }

 private:
  Duration TimeOf(Bytes bytes, double rate) const {
    return per_copy + FromSeconds(static_cast<double>(bytes.count()) / rate);
  }
};

class CopyPools {
 public:
  // `pools` outlives it. `page`: the most that one copy takes.
  CopyPools(const std::vector<CopyPool>& pools, Bytes page)
      : pools_(pools), page_(page), counts_(pools.size()) {}

  PoolNumber size() const { return static_cast<PoolNumber>(counts_.size()); }
  bool HasRoom(PoolNumber pool, Bytes bytes) const { return bytes <= Free(pool); }
  // A resident unit of that size may be copied there before it leaves.
  bool CanCopyAhead(PoolNumber pool, Bytes bytes) const {
    return pools_[pool].ahead && HasRoom(pool, bytes + pools_[pool].kept);
  }
  // There is room, with that of redundant copies.
  bool CanCopyOut(PoolNumber pool, Bytes bytes) const {
    const Counts& of = counts_[pool];
    return Minus(pools_[pool].capacity, of.used - of.redundant) >= bytes;
  }
  // A unit of that size may leave for the calls that wait, to the pool or to any.
  bool CanLeave(PoolNumber pool, Bytes bytes) const {
    return CanCopyOut(pool, bytes + KeptFromCalls(pool));
  }
  bool CanLeave(Bytes bytes) const;
  // The same of a resident unit whose copy in the pool is redundant, and is not when it has left.
  bool CanDrop(PoolNumber pool, Bytes bytes) const {
    return KeptFromCalls(pool) == Bytes{} || CanLeave(pool, bytes);
  }
  // No pool's kept bytes are in use, or another pool has room for a page.
  bool MayCreate() const;

  void Add(PoolNumber pool, Bytes bytes);
  void Remove(PoolNumber pool, Bytes bytes);
  void AddRedundant(PoolNumber pool, Bytes bytes) { counts_[pool].redundant += bytes; }
  void RemoveRedundant(PoolNumber pool, Bytes bytes) { counts_[pool].redundant -= bytes; }
  // Bytes that are being mapped, or are mapped and have not come from the pool, ahead of need.
  void AddComing(PoolNumber pool, Bytes bytes) { counts_[pool].coming += bytes; }
  void RemoveComing(PoolNumber pool, Bytes bytes) { counts_[pool].coming -= bytes; }

  Bytes used(PoolNumber pool) const { return counts_[pool].used; }
  Bytes redundant(PoolNumber pool) const { return counts_[pool].redundant; }
  Bytes coming(PoolNumber pool) const { return counts_[pool].coming; }
  Bytes used() const;
  // Pages that fit into all pools.
  uint64_t PagesMost() const;

 private:
  struct Counts {
    Bytes used;
    Bytes redundant;
    Bytes coming;
  };

  Bytes KeptFromCalls(PoolNumber pool) const {
    return pools_[pool].exchanges ? Bytes{} : pools_[pool].kept;
  }
  Bytes Free(PoolNumber pool) const { return Minus(pools_[pool].capacity, counts_[pool].used); }

  const std::vector<CopyPool>& pools_;
  const Bytes page_;
  std::vector<Counts> counts_;
};

}  // namespace ravenstore::core::plan
