// Which slabs of a device to empty, so that they can be given back: a pure query over what clients
// hold there. The caller carries the answer out, or does not.
//
// A slab can be emptied if everything that lies in it can leave, and costs what that costs
// (core/eviction.h). Of several those go first that cost the least for their size, or, where
// tenants' weights or priorities are set, those of the tenant that gives first (core/quota_tree.h).
//
// Owns: a count of what it looked at. Threads: one at a time. Cost: O(blocks) of the slabs that are
// looked at, some 16,000 for each arena at most; O(slabs^2) to choose among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/catalog.h"
#include "core/eviction.h"
#include "core/extents.h"
#include "core/quota_tree.h"
#include "core/types.h"

namespace ravenstore::core {

class Reclaimer {
 public:
  // What one client holds of the device, at its virtual time.
  struct Arena {
    ClientId client{};
    TenantId tenant{};
    const std::vector<Range>& slabs;
    const ExtentMap& map;
    const EvictionIndex& index;
    AwayLinks links;  // of the device
    Tick now{};
  };
  // A slab that can be emptied, the tensors that lie there, and the cost of their leaving.
  struct Emptying {
    ClientId client{};
    TenantId tenant{};
    Range slab;
    std::vector<uint32_t> rows = {};
    double cost = 0;
    // Of it, that of what lies in the slab before as well, and in the one after.
    double cost_before = 0;
    double cost_after = 0;
    QuotaTree::Rank rank{};  // of the tenant, once what goes before is gone
    double density() const { return cost / static_cast<double>(slab.second.count()); }
    bool GoesBefore(const Emptying& other) const {
      return std::pair(rank, density()) < std::pair(other.rank, other.density());
    }
  };
  using Emptyings = std::vector<Emptying>;

  // `catalog` outlives the reclaimer.
  explicit Reclaimer(const Catalog* catalog) : catalog_(catalog) {}

  // Adds the arena's slabs that can be emptied, or that are empty, but for those that overlap
  // `spared`. `weight` stands for the priorities of its tensors, where another client asks: they
  // rank a client's own tensors only.
  enum class Which : uint8_t { kAll, kEmpty };
  void Find(const Arena& arena, const Range& spared, Which which, std::optional<double> weight,
            Emptyings* found);
  // Blocks looked at in all searches so far.
  uint64_t searched() const { return searched_; }

  // Of the device, for slabs for `need` of the client.
  struct Asker {
    ClientId client{};
    TenantId tenant{};
    PoolId device{};
    Bytes need;
    QuotaTree::Claim claim = QuotaTree::Claim::kCost;
  };
  // Takes those out that the asker may not have of other tenants (QuotaTree::Yields), and ranks
  // those that stay, which are in order of their density. What lies empty anybody may have, but
  // not by right: of two who wait each would take what the other gathers, for ever.
  static void KeepShares(const QuotaTree& quota, const Asker& asker, Emptyings* slabs);

  // Slabs to empty, and what they come to.
  struct Proposal {
    Emptyings slabs;
    Bytes bytes;
    Bytes largest;
    double cost = 0;
  };
  // Of the slabs those that go first and hold `wanted` bytes, or all.
  static Proposal Cheapest(Emptyings slabs, Bytes wanted);

  // The last resort of a client that has pieces only: all of its slabs that can be emptied come
  // again side by side, behind one that stays.
  struct Compaction {
    Emptyings slabs;
    std::vector<uint32_t> rows;  // that leave too, at the end of the slab that stays
    Bytes staying;               // slabs that cannot be emptied
    // Of what lies there something is in nobody's use: it can leave once its streams or its copy
    // are done.
    bool settling = false;
    Bytes reach;  // so much is then contiguous
  };
  // `more`: so much can be added besides. A slab stays only where that makes room for `need`.
  Compaction Compact(const Arena& arena, Bytes need, Bytes more);

 private:
  bool IsSettling(const Arena& arena, const Range& slab) const;
  // Free room, and `rows` that can leave, at the end of a slab that stays.
  Bytes TailOf(const Arena& arena, const Range& slab, std::vector<uint32_t>* rows) const;

  const Catalog* catalog_;
  uint64_t searched_ = 0;
};

}  // namespace ravenstore::core
