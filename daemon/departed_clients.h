// Clients that left: releases their sessions once nothing of them is under way, and returns the
// memory of their tables to the kernel (daemon/heap_trim.h).
//
// Owns: the callbacks of clients that left, and memory that is being returned. Threads: the planner
// loop; workers destroy sessions and return memory. Errors: none. Cost: O(clients that left).
#pragma once

#include <functional>
#include <unordered_map>

#include "core/types.h"
#include "daemon/client_charges.h"
#include "daemon/heap_trim.h"
#include "daemon/loop_state.h"
#include "daemon/mailbox.h"
#include "daemon/sessions.h"
#include "daemon/threads.h"

namespace ravenstore::daemon {

class DepartedClients {
 public:
  // All of them outlive this. `mailbox`: the loop's.
  DepartedClients(LoopState* state, Sessions* sessions, ClientCharges* charges, WorkerPool* workers,
                  Mailbox* mailbox)
      : state_(*state),
        sessions_(*sessions),
        charges_(*charges),
        workers_(*workers),
        mailbox_(*mailbox) {}

  // `done` runs on a worker once the client's memory is released. REQUIRES: its session has left.
  void Add(core::ClientId client, std::function<void()> done) {
    on_released_[client] = std::move(done);
  }
  // Releases the clients of whose pages nothing is under way any more.
  void Release();
  // Begins to return memory to the kernel if it is time.
  void ReturnMemory();
  // When ReturnMemory has something to do; kNever: not until more memory is freed.
  core::Tick NextWake() const { return timer_.due(); }

 private:
  // Each is one short step, and has the next one posted.
  void TakeMemory();
  void PutBackMemory();

  LoopState& state_;
  Sessions& sessions_;
  ClientCharges& charges_;
  WorkerPool& workers_;
  Mailbox& mailbox_;
  std::unordered_map<core::ClientId, std::function<void()>> on_released_;
  HeapTrimTimer timer_;
  HeapTrim heap_trim_;
};

}  // namespace ravenstore::daemon
