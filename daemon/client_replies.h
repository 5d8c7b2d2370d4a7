// The store's answers, written to the clients: their rows and lease words, arrival words, and the
// instructions of their mappers, whose ends it reads.
//
// Owns: nothing. Threads: the planner loop. Errors: a row whose word the client changed against the
// protocol stays as it is. Cost: O(1) for each answer.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/events.h"
#include "core/types.h"
#include "daemon/client_charges.h"
#include "daemon/loop_state.h"
#include "daemon/map_orders.h"
#include "daemon/page_store.h"
#include "daemon/recorders.h"
#include "daemon/session.h"
#include "daemon/sessions.h"
#include "daemon/stream_waits.h"

namespace ravenstore::daemon {

// Descriptors of memory that the client should import; they go over its socket.
struct MemoryForClient {
  core::ClientId client;
  MapOrders::Batch batch;
};

class ClientReplies {
 public:
  // Must not block.
  using SendMemory = std::function<void(std::shared_ptr<MemoryForClient>)>;

  // All of them outlive this.
  ClientReplies(LoopState* state, Sessions* sessions, const Recorders* recorders,
                ClientCharges* charges, StreamWaits* waits, SendMemory send_memory)
      : state_(*state),
        sessions_(*sessions),
        recorders_(*recorders),
        charges_(*charges),
        waits_(*waits),
        send_memory_(std::move(send_memory)) {}

  // What the store does to rows and segments by itself; no pacer.
  PageStore::Hooks StoreHooks();

  void Do(const core::AllocReply& action);
  void Do(const core::AllocError& action);
  void Do(const core::FetchReply& action);
  void Do(const core::FetchError& action);
  void Do(const core::Release& action);
  // Reads which instructions the client's mapper has ended; true when there were any.
  bool PollMaps(Session& session);

 private:
  // The session of the tensor's client, with the tensor's slot, or null when either is gone.
  Session* SessionOf(const core::TensorOfClient& tensor) const;
  // As PageStore::Hooks.
  bool GrantEarly(core::ClientId client, core::SlotId slot, core::DeviceId device,
                  core::Bytes offset);
  void EndEarlyGrant(Session& session, core::SlotId slot, const core::Status& outcome);
  // The bytes of a fetch that was granted early are lost. REQUIRES: its arrival is written after
  // this.
  void MarkLost(Session& session, core::SlotId slot, const std::string& why);
  // Sends the client's mapper the instructions that wait for it.
  void SendMaps(Session& session);

  LoopState& state_;
  Sessions& sessions_;
  const Recorders& recorders_;
  ClientCharges& charges_;
  StreamWaits& waits_;
  const SendMemory send_memory_;
};

}  // namespace ravenstore::daemon
