// Of the idle units, the one that is needed last, and the one needed last that can be out by now.
//
// A clean unit is out immediately. A dirty one is out when the link has copied it. That copy can
// begin when the unit is idle and the link is free. A unit's position is where it is needed, or
// dies, next. A unit of lower priority goes before (core/plan/eviction_rank.h). Of equal positions
// the larger unit goes first, so that the order is the same in each run.
//
// Source: Belady, "A study of replacement algorithms for a virtual-storage computer" (1966), with
// the time that a copy takes.
//
// Owns: the heaps. Units: positions; times as in the plan. Threads: one at a time.
// Cost: O(log units) amortised a call; an entry that was removed is discarded when it is met.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "core/plan/eviction_rank.h"
#include "core/plan/units.h"
#include "core/types.h"

namespace ravenstore::core::plan {

class EvictionOrder {
 public:
  struct Candidate {
    EvictionRank rank;
    Unit unit;
    auto operator<=>(const Candidate&) const = default;
  };

  explicit EvictionOrder(size_t units) : units_(units) {}

  // The clean unit is idle. REQUIRES for both: it is not in the order.
  void AddClean(Unit unit, const EvictionRank& rank);
  // The dirty unit is idle since `since`; its copy takes `copy` on a free link.
  void AddDirty(Unit unit, const EvictionRank& rank, Duration since, Duration copy);
  // The unit is in use, or has left. It need not be in the order.
  void Remove(Unit unit);
  bool Contains(Unit unit) const { return units_[unit].kind != Kind::kNone; }
  // Since when the dirty unit is idle. REQUIRES: it is in the order.
  Duration Since(Unit unit) const { return units_[unit].since; }

  // The unit that leaves first; nullopt: none is idle.
  std::optional<Candidate> Latest();
  // The same of those that are out by `now`, if the link is free from `link_free` on.
  // REQUIRES: `now` is no earlier than in the call before.
  std::optional<Candidate> LatestOut(Duration now, Duration link_free);

 private:
  // Dirty units are young until the link could have copied them since they are idle.
  enum class Kind : uint8_t { kNone, kClean, kOld, kYoung };
  struct Of {
    Kind kind = Kind::kNone;
    uint32_t version = 0;  // of its entries in heaps only those of this version count
    Duration since{0};
    Duration copy{0};
  };
  struct Entry {
    Candidate candidate;
    uint32_t version;
    bool operator<(const Entry& other) const { return candidate < other.candidate; }
  };
  struct Aging {
    Duration at;
    Entry entry;
    bool operator<(const Aging& other) const {
      return at != other.at ? at > other.at : entry.candidate < other.entry.candidate;
    }
  };
  using Heap = std::priority_queue<Entry>;

  bool Holds(const Entry& entry, Kind kind) const {
    const Of& unit = units_[entry.candidate.unit];
    return unit.kind == kind && unit.version == entry.version;
  }
  // The heap's first entry that counts; null: none.
  const Candidate* First(Heap* heap, Kind kind);

  std::vector<Of> units_;
  Heap clean_;
  Heap old_;
  Heap young_;
  std::priority_queue<Aging> aging_;  // of young units, the first to grow old first
};

}  // namespace ravenstore::core::plan
