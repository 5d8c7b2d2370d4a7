// The pages and slots of one client in the replay: their states, and all that follows from them.
//
// Each function is one change of state. It keeps the queues, the plan's slack, the deadlines and
// the counts of physical pages in step. It knows no time but the one that copies take.
//
// Owns: the units, the plan, the queues. Units: bytes, positions. Threads: one at a time.
// Errors: none; a change that the state does not allow is a broken invariant.
// Cost: O(log units) a change; O(units log units) for a new plan.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/plan/deadlines.h"
#include "core/plan/move_chooser.h"
#include "core/plan/move_queues.h"
#include "core/plan/page_supply.h"
#include "core/plan/residency_plan.h"
#include "core/plan/slot_pages.h"
#include "core/plan/unit_state.h"
#include "core/plan/units.h"

namespace ravenstore::sim {

class PagedUnits {
 public:
  // `copy_in_rate`: bytes per second, for deadlines. `coming_most`: bytes that come ahead of need.
  PagedUnits(const core::plan::PlanLimits& limits, double copy_in_rate, core::Bytes coming_most);

  const core::plan::UnitState& operator[](core::plan::Unit unit) const { return units_[unit]; }
  size_t size() const { return units_.size(); }
  const core::plan::ResidencyPlan& plan() const { return plan_; }
  core::plan::MoveView view() const;

  // ---- The client.
  // The units exist, of this size class. REQUIRES: an occupied slot has this class already.
  void Ensure(const core::plan::UnitSpan& span);
  // A call holds the unit. Returns true if the unit is not resident; the call then waits for it.
  bool Pin(core::plan::Unit unit);
  // The call that held it is over for the CPU. The unit stays until the stream has come there.
  void Unpin(core::plan::Unit unit);
  // The stream has come to an Unpin.
  void Reach(core::plan::Unit unit);
  // The budget holds these units and all that are in use.
  bool FitsInUse(const core::plan::UnitSpan& span) const;
  // A tensor with `bytes` bytes in the unit is live from now on. REQUIRES: it is pinned and
  // resident.
  void AddTensor(core::plan::Unit unit, core::Bytes bytes);
  // Its bytes are not used any more.
  void RemoveTensor(core::plan::Unit unit, core::Bytes bytes);
  void Modify(core::plan::Unit unit);

  // ---- The plan.
  std::vector<core::plan::UnitSnapshot> Snapshot() const;
  void SetPlan(core::plan::ResidencyPlan plan);
  void MoveTo(core::plan::Position position);
  // The units are needed at this position, which the plan did not know. They stay until it is
  // remade. kNoPosition: they are not needed in the plan.
  void Announce(const core::plan::UnitSpan& span, core::plan::Position need);

  // ---- The engines.
  // Physical memory for the unit. Returns what the driver must do for it.
  core::plan::PageSupply::Steps StartMap(const core::plan::MapChoice& choice);
  // Returns true if the unit is resident: a call may go on.
  bool FinishMap(core::plan::Unit unit);
  void StartIn(core::plan::Unit unit);
  // Returns true if a call waits for the unit.
  bool FinishIn(core::plan::Unit unit);
  void StartOut(core::plan::Unit unit);
  void FinishOut(core::plan::Unit unit);
  // A clean unit leaves. REQUIRES: it is idle, or leaves by the plan.
  void Drop(core::plan::Unit unit);
  // The unit leaves: immediately, or when its copy has ended.
  void Force(core::plan::Unit unit);
  // A stale page is unmapped ahead of its next use. REQUIRES for StartUnmap: there is one.
  void StartUnmap();
  void FinishUnmap();

  core::Bytes WeightOf(core::plan::Unit unit) const {
    return limits_.WeightOf(units_[unit].slots_per_page);
  }
  // Bytes that slots moved on the device.
  core::Bytes compacted() const { return compacted_; }
  // Physical pages are neither lost nor made. For tests; O(units).
  void CheckPages() const;

 private:
  // Of each unit's bytes: how often they have changed, and had when their copy out began.
  struct Changes {
    uint32_t now = 0;
    uint32_t copied = 0;
    bool coming = false;  // it is counted in coming_
  };

  void Update(core::plan::Unit unit);
  void Release(core::plan::Unit unit);
  bool Arrive(core::plan::Unit unit);
  void Compact();

  const core::plan::PlanLimits limits_;
  const double copy_in_rate_;
  const core::Bytes coming_most_;
  std::vector<core::plan::UnitState> units_;
  std::vector<Changes> changes_;
  core::plan::ResidencyPlan plan_;
  core::plan::MoveQueues queues_;
  core::plan::Deadlines deadlines_;
  core::plan::PageSupply supply_;
  core::plan::SlotPages slot_pages_;
  std::vector<core::plan::Unit> passed_;  // kept for its memory
  core::Bytes coming_;
  core::Bytes in_use_;
  uint32_t leaving_ = 0;
  uint64_t uses_ = 0;
  core::Bytes compacted_;
};

}  // namespace ravenstore::sim
