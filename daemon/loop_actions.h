// Carries out the store's actions: replies to clients, and pools that grow or shrink.
//
// Owns: nothing. Threads: the planner loop; workers make and destroy a pool's memory. Errors: those
// of a pool's memory become events. Cost: O(actions).
#pragma once

#include "core/events.h"
#include "daemon/client_replies.h"
#include "daemon/harvests.h"
#include "daemon/loop_pools.h"
#include "daemon/loop_state.h"
#include "daemon/mailbox.h"
#include "daemon/threads.h"

namespace ravenstore::daemon {

class LoopActions {
 public:
  // All of them outlive this. `mailbox`: the loop's.
  LoopActions(LoopState* state, ClientReplies* replies, LoopPools* pools, Harvests* harvests,
              WorkerPool* workers, Mailbox* mailbox)
      : state_(*state),
        replies_(*replies),
        pools_(*pools),
        harvests_(*harvests),
        workers_(*workers),
        mailbox_(*mailbox) {}

  // Carries out the plan, and what follows from it, until no action is left.
  void Execute();
  // Applies the event, and carries out what follows.
  void Apply(const core::Event& event) {
    state_.Apply(event);
    Execute();
  }

 private:
  void Do(const core::GrowPool& action);
  void Do(const core::ShrinkPool& action);
  void Do(const core::ReclaimPinned& action);
  template <typename Reply>
  void Do(const Reply& action) {
    replies_.Do(action);
  }

  LoopState& state_;
  ClientReplies& replies_;
  LoopPools& pools_;
  Harvests& harvests_;
  WorkerPool& workers_;
  Mailbox& mailbox_;
};

}  // namespace ravenstore::daemon
