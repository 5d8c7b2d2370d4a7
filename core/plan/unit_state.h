// The state of a page or a slot while a client runs.
//
// Owns: plain data. Units: bytes.
#pragma once

#include <cstdint>

#include "core/books/page_life.h"
#include "core/events.h"
#include "core/plan/copy_pools.h"
#include "core/types.h"

namespace ravenstore::core::plan {

struct UnitState {
  PageState life = PageState::kAway;
  bool demanded = false;   // a call waits for it
  bool forced = false;     // leaves though the plan does not say so
  bool contested = false;  // the client has used a tensor there, and the report of it has not come
  uint32_t pins = 0;       // calls that hold it
  uint32_t tickets = 0;    // puts and frees that the client's stream has not reached
  uint32_t in_place = 0;   // uses of its copy by kernels; it is away meanwhile
  uint32_t live = 0;       // tensors in it
  uint32_t slots_per_page = 1;
  PoolNumber pool = kNoPool;              // of its copy; kNoPool: there is none
  Bytes bytes = {};                       // of those tensors
  uint64_t last_use = 0;                  // counts uses of all units
  double uses = 0;                        // of all of it, since a tensor is in it
  double worth = 0;                       // at its last use (use_worth.h)
  Priority priority = Priority::kNormal;  // the highest of those tensors

  bool IsResident() const { return core::IsResident(life); }
  bool IsDirty() const { return life == PageState::kDirty; }
  bool InUse() const { return pins > 0 || tickets > 0; }
  // A call waits for memory for it.
  bool IsAwaited() const { return demanded && life == PageState::kAway && in_place == 0; }
  // Resident, not in use, and not being copied out.
  bool IsFree() const { return IsResident() && !IsBeingCopiedOut(life) && !InUse() && !contested; }
  bool IsIdle() const { return IsFree() && live > 0 && !forced; }
};

}  // namespace ravenstore::core::plan
