// Makes a ResidencyPlan: one pass finds each unit's uses, one decides who leaves.
//
// Owns: the plan until Build() returns it, and the state of each unit at the call it looks at.
// Units: as the plan. Threads: one at a time. Cost: as ResidencyPlan::Make.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/calls.h"
#include "core/plan/eviction_order.h"
#include "core/plan/held_pages.h"
#include "core/plan/planned_copies.h"
#include "core/plan/residency_plan.h"

namespace ravenstore::core::plan {

class PlanBuilder {
 public:
  // `calls` and `units` outlive the call of Build.
  PlanBuilder(std::span<const PlannedCall> calls, std::span<const UnitSnapshot> units,
              const PlanLimits& limits);
  // REQUIRES: is called once.
  ResidencyPlan Build();

 private:
  // Each unit's gaps, with where it is needed and where it dies.
  void FindGaps();
  void CountUses();
  // The units as they are now, idle ones in the order.
  void Restart();
  void Apply(const PlannedCall& call);
  void Acquire(const PlannedCall& call, Unit unit);
  void Yield(const PlannedCall& call, Unit unit);
  // Idle units leave until what is held at the position fits.
  void Shrink(Position position);
  std::optional<Unit> Victim(Position position, Duration now);
  // Returns false if no pool has room for its copy: it stays.
  bool Leave(Unit unit, Position position, Duration now);
  bool CopyOut(Unit unit, Duration now);
  // The unit is away, with its copy in units_[unit].pool, or is away no more.
  void BeginAway(Unit unit);
  void EndAway(Unit unit);
  Bytes WeightOf(Unit unit) const { return limits_.WeightOf(units_[unit].slots_per_page); }
  void Hold(Unit unit);
  void Drop(Unit unit);
  // The unit's pins or tensors have changed; these were there before.
  void CountNeeds(Unit unit, uint32_t pins, uint32_t live);
  void Idle(Unit unit, Duration since);
  // By its priority, and where it is needed, or dies, next.
  EvictionRank RankOf(Unit unit) const;
  // Of the decision by half as late: a need beyond the horizon is later than all others.
  Duration TimeOf(Position position) const;
  ResidencyPlan::Gap& GapOf(Unit unit) { return plan_.gaps_[plan_.now_[unit]]; }
  int64_t Free() const;

  std::span<const PlannedCall> calls_;
  std::span<const UnitSnapshot> given_;
  const PlanLimits limits_;
  ResidencyPlan plan_;
  std::vector<UnitSnapshot> units_;
  EvictionOrder order_;
  HeldPages held_;
  HeldPages pinned_;  // for units that calls hold
  HeldPages alive_;   // the same, and those in which something lives
  PlannedCopies copies_;
  std::vector<bool> away_;  // by unit
  Duration late_{0};        // what the client has waited for copies so far
};

}  // namespace ravenstore::core::plan
