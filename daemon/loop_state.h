// What the parts of the planner loop share: the store, the actions that it answered with, the time
// of the current pass, and the part of the pass that each user has left.
//
// Owns: the store, and the blocks of pinned memory. Threads: the planner loop. Units: a log entry,
// a request or a ticket is one unit of a pass. Errors: none. Cost: O(1).
#pragma once

#include <cstdint>
#include <memory>

#include "core/events.h"
#include "core/types.h"
#include "daemon/page_store.h"
#include "daemon/pinned.h"
#include "daemon/session.h"
#include "daemon/turn_budget.h"

namespace ravenstore::daemon {

struct LoopState {
  // Applies the event to the store, and leaves the store's actions in `plan`.
  void Apply(const core::Event& event) { store->Apply(event, now, &plan); }
  const StoreViews& views() const { return store->views(); }
  uint32_t UnitsLeft(const Session& session) const {
    return turns.Left(session.attachment().tenant);
  }
  void Spend(const Session& session, size_t units) {
    turns.Spend(session.attachment().tenant, static_cast<uint32_t>(units));
  }

  // Both are set before the first event.
  std::unique_ptr<PageStore> store{};
  std::unique_ptr<Pinned> pinned{};
  core::Plan plan{};  // actions that are not carried out yet (daemon/loop_actions.h)
  core::Tick now{};
  TurnBudget turns;
};

}  // namespace ravenstore::daemon
