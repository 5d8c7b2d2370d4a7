// Puts and frees that wait for clients' streams to reach their tickets.
//
// Owns: which clients have such waits; the waits are in their sessions. Threads: the planner loop.
// Errors: a client with more waits than it may have is expelled. Cost: O(1) for a wait, O(clients
// with waits) for Poll.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"
#include "daemon/client_charges.h"
#include "daemon/loop_state.h"
#include "daemon/session.h"
#include "daemon/sessions.h"
#include "proto/layout.h"

namespace ravenstore::daemon {

class StreamWaits {
 public:
  // All of them outlive this.
  StreamWaits(LoopState* state, Sessions* sessions, ClientCharges* charges)
      : state_(*state), sessions_(*sessions), charges_(*charges) {}

  // The store gets StreamComplete when the ticket of the put that left `idle_word` is reached.
  // `ticket`: packed, as it was read together with the word.
  void AwaitPut(Session& session, core::SlotId slot, core::TensorId tensor, uint64_t idle_word,
                uint64_t ticket);
  // The same for a ticket that is not reached. With idle_word 0 the store gets Freed.
  void Await(Session& session, proto::WordValue ticket, core::TensorId tensor, uint64_t idle_word);
  // Applies the events of tickets that are reached; true when there were any.
  bool Poll();
  bool empty() const { return clients_.empty(); }

 private:
  void Reach(Session& session, const TicketQueues::Waiting& waiting);

  LoopState& state_;
  Sessions& sessions_;
  ClientCharges& charges_;
  std::vector<core::ClientId> clients_;  // with waits
};

}  // namespace ravenstore::daemon
