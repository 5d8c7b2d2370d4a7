// The places of blocks in pinned memory.
//
// A user's processes get blocks of pinned host memory, which are cut to the page from slabs. A slab
// belongs to one user for life, since a process that maps it can read all of it. Memory that a user
// freed stays with that user, warm for the next block, until another user needs it or the user's
// last process ends.
//
// Where copies may cross the border of two slabs, a user's slabs are neighbours and a block may
// span several of them. Then only the last slab has a part that no block asked for.
//
// Owns: the bookkeeping only. Threads: one at a time. Cost: O(log n), but where a slab is released
// or a client ends O(its slabs and blocks).
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/extents.h"
#include "core/types.h"

namespace ravenstore::core {

// A block as its client names it.
struct PinnedBlockId {
  ClientId client{};
  uint64_t number = 0;
  auto operator<=>(const PinnedBlockId&) const = default;
};

// A slab. A pool is the memory of one NUMA node.
struct PinnedSlabId {
  uint32_t pool = 0;
  Bytes offset;
  auto operator<=>(const PinnedSlabId&) const = default;
};

class PinnedBooks {
 public:
  // Blocks begin and end at multiples of this.
  static constexpr Bytes kPage{4096};

  struct Options {
    size_t pools = 1;
    Bytes range;            // addresses of each pool
    Bytes granularity;      // of slabs
    Bytes slab = MiB(64);   // a slab that holds small blocks is no larger
    bool straddle = false;  // a block may lie in several slabs
  };
  struct Slab {
    PinnedSlabId id;
    Bytes bytes;
  };

  explicit PinnedBooks(Options options);

  // Cuts a block from what the user has, at the offset returned; nullopt where no hole takes it.
  // REQUIRES: the client has no block of that number; `bytes` is not zero.
  std::optional<Bytes> Carve(TenantId user, PinnedBlockId id, uint32_t pool, Bytes bytes);
  bool Has(PinnedBlockId id) const { return blocks_.contains(id); }
  // False when there is no such block.
  bool Free(PinnedBlockId id);

  // How large a slab to make so that a block finds room.
  Bytes PlanSlab(TenantId user, uint32_t pool, Bytes bytes) const;
  // It is being made, and counts from now on. nullopt: the pool has no such addresses left.
  std::optional<Slab> Add(TenantId user, uint32_t pool, Bytes bytes);
  // It came, or it did not.
  void Ready(PinnedSlabId id);
  void Failed(PinnedSlabId id);

  // The slabs that the extent touches and that the client has not been notified of; from now on it
  // counts as notified.
  std::vector<Slab> AddNotified(ClientId client, uint32_t pool, Bytes offset, Bytes bytes);

  // The client could not be notified after all. True if the slab is being released and that client
  // was the last.
  bool RemoveNotified(ClientId client, PinnedSlabId slab);

  // Slabs that hold no block and are not being released: those of the user alone, or of all others.
  std::vector<Slab> Idle(TenantId user, bool of_others = false) const;
  // No block is placed there any more. Returns the clients that were notified of the slab.
  // REQUIRES: it is idle.
  std::vector<ClientId> Release(PinnedSlabId id);
  // The client maps it no more. False when that was not awaited.
  bool Unmapped(PinnedSlabId id, ClientId client);
  // Whether it is being released and no client maps it.
  bool IsUnmapped(PinnedSlabId id) const;
  // Its memory is released; or cannot be: then it counts for good, and no block is placed there.
  void Removed(PinnedSlabId id);
  void NotRemoved(PinnedSlabId id);
  // Slabs that are being released.
  size_t releasing() const { return releasing_; }

  // The client ended: its blocks are free, and it maps nothing. Returns the slabs that are being
  // released and that no client maps any more.
  std::vector<PinnedSlabId> RemoveClient(ClientId client);

  // Of slabs, until Removed or Failed.
  Bytes Held(TenantId user) const;
  Bytes HeldByAll() const;
  // Of blocks.
  Bytes Used(ClientId client) const;

  // Aborts unless all agrees; O(n).
  void CheckInvariants() const;

 private:
  struct Holding {  // of one user in one pool
    explicit Holding(Bytes range) : map(range) {}
    ExtentMap map;
    Bytes end;  // of the slab that was added last; zero when that left
  };
  struct Owned {
    TenantId user{};
    Bytes bytes;
    ExtentMap::Block addresses = ExtentMap::kNone;
    bool ready = false;
    bool releasing = false;
    bool stuck = false;  // could not be given back
    std::set<ClientId> notified;
  };
  struct Block {
    TenantId user{};
    uint32_t pool = 0;
    ExtentMap::Block extent = ExtentMap::kNone;
    Bytes bytes;
  };
  using HoldingKey = std::pair<TenantId, uint32_t>;

  Holding& HoldingOf(TenantId user, uint32_t pool);
  const Holding* FindHolding(TenantId user, uint32_t pool) const;
  // Whether a slab can directly follow the last one.
  bool CanExtend(const Holding* holding, uint32_t pool, Bytes bytes) const;
  void Forget(std::map<PinnedSlabId, Owned>::iterator slab);

  const Options options_;
  std::vector<ExtentMap> addresses_;  // by pool
  std::map<HoldingKey, std::unique_ptr<Holding>> holdings_;
  std::map<PinnedSlabId, Owned> slabs_;
  std::map<PinnedBlockId, Block> blocks_;
  std::map<TenantId, Bytes> held_;  // no zeros
  std::map<ClientId, Bytes> used_;  // no zeros
  size_t releasing_ = 0;
};

}  // namespace ravenstore::core
