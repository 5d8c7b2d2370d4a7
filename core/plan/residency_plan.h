// The plan: for each position which units leave, and how many bytes stay free.
//
// A plan is made once over the calls that are expected. Where the units that the calls need exceed
// the pages that may be held, the idle unit that is needed last leaves. Of those needed at least
// half as late, the last one that the link can have copied out by then goes before it: a copy that
// is waited for costs more than an earlier way back. Units of lower priority go before all others
// (core/plan/eviction_rank.h). A unit leaves in a gap between two of its
// uses. The executor may let it leave from the gap's beginning on.
//
// At run time the plan follows the client's position. It says where a unit is needed next, whether
// it leaves before that, and whether a unit that comes fits from now until its need.
//
// Source: core/plan/eviction_order.h; the slack is a range-minimum tree
// (core/plan/range_minimum.h).
//
// Owns: the gaps and the slack. Units: positions, bytes. Threads: one at a time; a plan that is
// made from a snapshot may be made on any thread. Errors: none; calls that need more than `pages`
// in one call are counted (over_budget()).
// Cost: O((uses + units) log units) to make; O(log calls) a query; O(1) amortised for each use that
// the position passes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/events.h"
#include "core/plan/calls.h"
#include "core/plan/copy_pools.h"
#include "core/plan/range_minimum.h"
#include "core/plan/units.h"
#include "core/types.h"

namespace ravenstore::core::plan {

// A unit when the plan is made.
struct UnitSnapshot {
  uint32_t pins = 0;    // calls that hold it
  uint32_t live = 0;    // tensors in it
  bool held = false;    // a physical page is beneath it, or a call needs one there
  bool dirty = false;   // the device's bytes are newer than any copy
  PoolNumber pool = 0;  // of the copy, unless it is dirty
  uint32_t slots_per_page = 1;
  Priority priority = Priority::kNormal;
};

// What a plan may use.
struct PlanLimits {
  Bytes page;
  uint32_t pages = 0;           // that may be held
  std::vector<CopyPool> pools;  // at least one
  // Kernels can use copies where they are. A call that finds no room does so; it waits only for
  // pages that are on their way.
  bool in_place = false;

  Bytes WeightOf(uint32_t slots_per_page) const { return Bytes(page.count() / slots_per_page); }
};

class ResidencyPlan {
 public:
  // Between two uses of a unit, before its first or after its last one.
  struct Gap {
    Position need = kNoPosition;    // where it is needed next
    Position leaves = kNoPosition;  // where it has left; kNoPosition: it stays
    PoolNumber pool = kNoPool;      // where its copy goes then; kNoPool: there is one, or to any
    Position dies = kNoPosition;    // where nothing lives there any more
  };

  // No calls: nothing is known.
  ResidencyPlan() = default;
  // `units` by their numbers; those beyond are away and empty.
  static ResidencyPlan Make(std::span<const PlannedCall> calls, std::span<const UnitSnapshot> units,
                            const PlanLimits& limits);
  // The expected calls of one of several clients, in order, with times from now on; its units.
  struct Forecast {
    std::span<const PlannedCall> calls;
    std::span<const UnitSnapshot> units;
  };
  // One plan of clients that share the pages, in the order of their calls' times: each client's
  // part of it, with positions of its own. The parts share what stays free.
  static std::vector<ResidencyPlan> MakeShared(std::span<const Forecast> clients,
                                               const PlanLimits& limits);

  bool empty() const { return calls_.empty(); }
  Position horizon() const { return static_cast<Position>(calls_.size()); }
  Position position() const { return position_; }
  const PlannedCall& call(Position position) const { return calls_[static_cast<size_t>(position)]; }
  const std::vector<PlannedCall>& calls() const { return calls_; }
  // The time of a position; beyond the horizon that of the last call.
  Duration TimeOf(Position position) const;
  // From the last call until then: zero for a need that is overdue, the longest time for
  // kNoPosition.
  Duration TimeFromNow(Position position) const;
  // The client has reached the position. Appends the units whose next need has changed to `passed`.
  void MoveTo(Position position, std::vector<Unit>* passed);

  // The first need, planned or announced; kNoPosition: none. One before the position is overdue.
  Position NextNeed(Unit unit) const { return std::min(PlannedNeed(unit), AnnouncedNeed(unit)); }
  // The first need that slack counts.
  Position PlannedNeed(Unit unit) const { return GapOf(unit).need; }
  Position LeavesAt(Unit unit) const { return GapOf(unit).leaves; }
  PoolNumber PoolOf(Unit unit) const { return GapOf(unit).pool; }
  // The unit stays in this gap, or its leaving is done.
  void ClearLeave(Unit unit);

  // Where the unit is needed, of a plan without calls; kNoPosition: that is not known.
  void Announce(Unit unit, Position need);

  // A unit that takes `weight` fits from now until `need`. An overdue need is now.
  bool Fits(Bytes weight, Position need) const;
  // `weight` is taken (added: is free) from now until `until`, beyond what was planned.
  void Take(Bytes weight, Position until);
  void Release(Bytes weight, Position until);
  // From now on `pages` may be held, instead of those of the limits.
  void SetPages(uint32_t pages, PlanLimits* limits);

  // The most pages that calls hold at one position, and in which something lives.
  uint32_t pages_held() const { return pages_held_; }
  uint32_t pages_alive() const { return pages_alive_; }
  // How often a call needed more than all pages.
  uint32_t over_budget() const { return over_budget_; }
  // All gaps of a unit in order, for tests.
  std::span<const Gap> GapsOf(Unit unit) const;
  // The bytes of all free pages between two calls: 0: before the first one.
  int64_t SlackAt(Position position) const;

 private:
  friend class PlanBuilder;
  friend class SharedPlan;

  const Gap& GapOf(Unit unit) const;
  Position AnnouncedNeed(Unit unit) const {
    return unit < announced_.size() ? announced_[unit] : kNoPosition;
  }
  size_t SlackPosition(Position position) const;
  static const Gap kNoGap;

  std::vector<PlannedCall> calls_;
  std::vector<Gap> gaps_;            // by unit, then in order
  std::vector<uint32_t> first_gap_;  // of each unit; the last is gaps_.size()
  std::vector<uint32_t> now_;        // each unit's gap
  std::vector<Position> announced_;  // by unit; it may lack the last ones
  // By position of the plan that the client's is a part of; without calls null.
  std::shared_ptr<RangeMinimum> slack_;
  std::vector<Position> shared_;  // its positions, by the client's; empty: they are the same
  Position position_ = 0;
  Position passed_ = 0;  // the gaps are of this position; it never goes back
  uint32_t pages_held_ = 0;
  uint32_t pages_alive_ = 0;
  uint32_t over_budget_ = 0;
};

}  // namespace ravenstore::core::plan
