// Clients' requests, each checked against the row that it is about and turned into an event.
//
// Owns: nothing. Threads: the planner loop. Errors: a create or fetch that cannot be is answered in
// its row; a request that does not fit its row is counted and ignored. Cost: O(1).
#pragma once

#include "core/types.h"
#include "daemon/client_charges.h"
#include "daemon/loop_state.h"
#include "daemon/recorders.h"
#include "daemon/session.h"
#include "daemon/sessions.h"
#include "daemon/stream_waits.h"
#include "proto/layout.h"

namespace ravenstore::daemon {

class ClientRequests {
 public:
  // `devices`: the number of devices. All of the others outlive this.
  ClientRequests(size_t devices, LoopState* state, Sessions* sessions, const Recorders* recorders,
                 ClientCharges* charges, StreamWaits* waits)
      : devices_(devices),
        state_(*state),
        sessions_(*sessions),
        recorders_(*recorders),
        charges_(*charges),
        waits_(*waits) {}

  // Leaves the store's actions in the plan.
  void Handle(Session& session, const proto::Request& request);

 private:
  void HandleCreate(Session& session, const proto::Request& request);
  void HandleFetch(Session& session, const proto::Request& request);
  void HandleFree(Session& session, const proto::Request& request);
  void HandleStep(const Session& session);
  void CommitPut(Session& session, const proto::Request& request);
  void Reject(const Session& session, const proto::Request& request, const char* why);

  const size_t devices_;
  LoopState& state_;
  Sessions& sessions_;
  const Recorders& recorders_;
  ClientCharges& charges_;
  StreamWaits& waits_;
};

}  // namespace ravenstore::daemon
