// The pages and slots of one client on one device: their states, and all that follows from them.
//
// Each function is one change. It takes the step of the state table (page_life.h), and keeps the
// queues, the plan's slack, the deadlines, and the counts of physical pages and of copies in step.
// It knows no time but the one that copies take. Nothing is copied or mapped here: the executor
// (core/execution/page_executor.h) does what a change needs before or after it.
//
// A unit is a page or a slot (core/plan/units.h). `pins` of a unit are calls that hold it;
// `tickets` are puts and frees that the client's stream has not reached. Kernels may use the copy
// of an away unit where it is (zero-copy access). Such a use needs no memory of the device, and is
// neither of them.
//
// Owns: the units, the plan, the queues, the lists of free physical pages. Units: bytes, positions.
// Threads: one at a time. Errors: none; a change that the state does not allow is a broken
// invariant. Cost: O(log units) a change; O(units log units) for a new plan.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/books/page_life.h"
#include "core/books/page_memory.h"
#include "core/books/unit_copies.h"
#include "core/books/unit_totals.h"
#include "core/plan/copy_pools.h"
#include "core/plan/deadlines.h"
#include "core/plan/move_chooser.h"
#include "core/plan/move_queues.h"
#include "core/plan/page_supply.h"
#include "core/plan/residency_plan.h"
#include "core/plan/slot_pages.h"
#include "core/plan/unit_state.h"
#include "core/plan/units.h"
#include "core/plan/use_worth.h"

namespace ravenstore::core {

class PageBooks {
 public:
  struct Options {
    plan::PlanLimits limits;  // .pages: the client's share, all made
    Bytes coming_most;        // bytes that come from one pool ahead of need
  };
  struct Arrival {
    plan::Unit unit;
    bool demanded;  // a call waited for it
  };

  explicit PageBooks(const Options& options);

  const plan::UnitState& operator[](plan::Unit unit) const { return units_[unit]; }
  // For decisions; page_views.h has more.
  plan::MoveView view() const {
    return {.units = units_,
            .queues = queues_,
            .plan = plan_,
            .deadlines = deadlines_,
            .supply = memory_.supply(),
            .slot_pages = memory_.slot_pages(),
            .limits = limits_,
            .copies = copies_.pools(),
            .coming_most = options_.coming_most,
            .leaving = totals_.leaving(),
            .expected = memory_.expected(),
            .surplus = memory_.pages() > limits_.pages ? memory_.pages() - limits_.pages : 0,
            .ready = totals_[UnitTotals::Sum::kReady],
            .growth = growth_};
  }
  const UnitTotals& totals() const { return totals_; }
  const UnitCopies& copies() const { return copies_; }
  std::vector<UnitCopies::Removed> TakeRemovedCopies() { return copies_.TakeRemoved(); }
  const PageMemory& memory() const { return memory_; }
  // To add pages that were made, and to unmap stale ones.
  PageMemory& memory() { return memory_; }

  // ---- The client.
  // The units exist, of this size class. REQUIRES: an occupied slot has this class already.
  void Ensure(const plan::UnitSpan& span);
  // A call holds the unit. Returns true if the unit is not resident; the call then waits for it.
  // `in_place`: no call holds the away unit, and kernels use its bytes where its copy is, until
  // Reach(). It is not mapped meanwhile, and its copy is not moved. The call does not wait.
  bool Pin(plan::Unit unit, bool in_place = false);
  // The call that held it is over for the CPU. The unit stays until the stream has come there.
  void Unpin(plan::Unit unit);
  // The stream has come to an Unpin, or to the end of a use in place.
  void Reach(plan::Unit unit, bool in_place = false);
  // A tensor with `bytes` bytes in the unit is live from now on. REQUIRES: it is pinned and
  // resident.
  void AddTensor(plan::Unit unit, Bytes bytes);
  // Its bytes are not used any more. `with_copy`: the copy of the away unit is without them from
  // now on. REQUIRES: no use in place of the tensor is under way.
  void RemoveTensor(plan::Unit unit, Bytes bytes, bool with_copy = false);
  // A tensor lives in the away unit from now on, with its bytes in the unit's copy in the pool. It
  // is created there; or it has left away pages for a slot, as RemoveTensor() has said before.
  // REQUIRES: the pool has room; another tensor of the unit has its bytes in that pool, too.
  void AddAwayTensor(plan::Unit unit, plan::PoolNumber pool, Bytes bytes);
  // The highest priority of the tensors in it.
  void SetPriority(plan::Unit unit, Priority priority);
  // The device's bytes are newer than any copy.
  void Modify(plan::Unit unit) {
    Apply(unit, PageEvent::kChange);
    Update(unit);
  }
  // The client is gone: no call holds a unit, the stream has come to all puts, and no tensor lives.
  void EndUses();
  // `contested`: the client uses a tensor there that these books have as idle. The unit stays as it
  // is until the report of that use comes, or until there is no such use.
  void SetContested(plan::Unit unit, bool contested) {
    if (std::exchange(units_[unit].contested, contested) != contested) Update(unit);
  }
  // The unit comes as if a call waited for it: perhaps its copy is in memory that another wants
  // back. To be repeated after a copy in that failed. REQUIRES: a tensor lives there.
  void Demand(plan::Unit unit);

  // ---- The plan.
  void SetPlan(plan::ResidencyPlan plan);
  void MoveTo(plan::Position position);
  // Where the unit is needed. REQUIRES: there is no plan.
  void Announce(plan::Unit unit, plan::Position need);
  // What will be created, where there is no plan.
  void SetGrowth(const plan::ExpectedGrowth& growth) { growth_ = growth; }

  // ---- The share of the device.
  // The client may hold this many pages. Pages beyond that are released as they become free; pages
  // that its calls hold stay.
  void SetShare(uint32_t pages) { plan_.SetPages(pages, &limits_); }
  // A page that is free, and whether it is mapped still; it is the client's no more. nullopt: no
  // page is free.
  std::optional<plan::PageSupply::Released> ReleasePage();

  // ---- The engines. What they do comes from core/plan/move_chooser.h.
  // Takes physical memory for the unit. REQUIRES: the choice is not kSparse; Compact() comes before
  // that, and the choice is then kSupply.
  PageMemory::Mapping StartMap(const plan::MapChoice& choice);
  void FinishMap(plan::Unit unit);
  void StartIn(plan::Unit unit);
  // `ok`: the bytes are there. Else the unit is away again; or is copied again, if it is in use: of
  // calls that waited for it there are none. Not `ok` before StartIn(): the mapping has failed, or
  // the bytes are not wanted any more, and no call holds the unit.
  void FinishIn(plan::Unit unit, bool ok);
  // REQUIRES: the pool has room for its bytes.
  void StartOut(plan::Unit unit, plan::PoolNumber pool);
  // Not `ok`: the unit stays in its present gap.
  void FinishOut(plan::Unit unit, bool ok);
  // A clean unit leaves. REQUIRES: it is idle, or leaves by the plan; its tensors' words are
  // revoked.
  void Drop(plan::Unit unit);
  // The unit leaves: immediately, or when its copy has ended.
  void Force(plan::Unit unit);
  // The unit's copy is in that pool from now on, be it beyond the pool's capacity. kNoPool: it is
  // dropped. REQUIRES: CanMoveOn (page_views.h); the copy is redundant if it is dropped.
  void MoveCopy(plan::Unit unit, plan::PoolNumber pool);
  // The pool has that capacity and these rates from now on, and allows copies ahead or not. Copies
  // that take more remain; until there is room again none is added.
  void SetPool(plan::PoolNumber pool, const plan::CopyPool& as) { limits_.pools[pool] = as; }
  // A page of slots is emptied: its slots get other places on the device, and it is free.
  // `slots`: of SlotPages::FindSparse; their tensors' words are revoked.
  std::vector<PageMemory::SlotMove> Compact(const std::vector<plan::Unit>& slots);
  // Appends the units that became resident since the last call.
  void TakeArrivals(std::vector<Arrival>* arrivals);

 private:
  void Apply(plan::Unit unit, PageEvent event);
  void Update(plan::Unit unit);

  const Options options_;
  plan::PlanLimits limits_;
  std::vector<plan::UnitState> units_;
  plan::ResidencyPlan plan_;
  plan::MoveQueues queues_;
  plan::Deadlines deadlines_;
  PageMemory memory_;
  UnitTotals totals_;
  std::vector<plan::Unit> passed_;  // kept for its memory
  std::vector<Arrival> arrivals_;
  UnitCopies copies_;
  plan::ExpectedGrowth growth_;
  uint64_t uses_ = 0;
  plan::UseWorth worth_;
};

}  // namespace ravenstore::core
