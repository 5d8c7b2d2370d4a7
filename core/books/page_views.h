// Questions to a client's books, for a decision, a plan or a check.
//
// Owns: nothing. Units: pages, bytes. Threads: one at a time, that of the books. Errors: none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/books/page_books.h"
#include "core/decide/page_admission.h"
#include "core/plan/residency_plan.h"
#include "core/plan/units.h"

namespace ravenstore::core {

// A call that would hold these units; a create in them. The units exist. `in_place`: the call would
// hold only those that are resident. O(units of the call).
decide::PageCall CallIn(const PageBooks& books, const plan::UnitSpan& units, bool in_place = false);
decide::PageCreate CreateIn(const PageBooks& books, const plan::UnitSpan& units);
// Pages that calls hold.
uint32_t PagesInUse(const PageBooks& books);
// One of the units is being mapped or copied in.
bool IsOnItsWay(const PageBooks& books, const plan::UnitSpan& units);
// The memory that the unit has or needs.
Bytes WeightOf(const PageBooks& books, plan::Unit unit);
// Where the unit's bytes are. REQUIRES: it has physical memory.
PageMemory::Place PlaceOf(const PageBooks& books, plan::Unit unit);
// A tensor of these pages may go to the slot: all are away, with copies in one pool, and no call
// holds one or uses its copy.
bool CanMoveCopy(const PageBooks& books, const plan::UnitSpan& pages, const plan::UnitSpan& slot);
// The unit's copy is the only one, is not being copied to the device, and no kernel uses it: it may
// go to another pool.
bool CanMoveOn(const plan::UnitState& unit);
// A resident unit whose copy in the pool can be dropped for another; nullopt: there is none.
// O(redundant copies of the pool).
std::optional<plan::Unit> CopyToDrop(const PageBooks& books, plan::PoolNumber pool);
// The units with the tensors that live. O(units).
std::vector<plan::UnitSnapshot> SnapshotOf(const PageBooks& books);
// Physical pages and copies are neither lost nor made. For tests; O(units).
void CheckBooks(const PageBooks& books);

}  // namespace ravenstore::core
