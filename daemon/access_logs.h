// Reads what clients logged of their gets and puts, and turns it into events. Where entries were
// dropped it reads the rows of their tensors instead.
//
// Owns: nothing. Threads: the planner loop. Errors: none; an entry without a tensor is skipped.
// Cost: O(entries and rows that are read), and O(clients) where it says so.
#pragma once

#include "core/types.h"
#include "daemon/loop_actions.h"
#include "daemon/loop_state.h"
#include "daemon/recorders.h"
#include "daemon/session.h"
#include "daemon/sessions.h"
#include "daemon/stream_waits.h"
#include "proto/layout.h"

namespace ravenstore::daemon {

class AccessLogs {
 public:
  // How often the logs of clients that are not hot are read, while that may be of use.
  static constexpr core::Duration kWarmPoll = std::chrono::milliseconds(1);

  // All of them outlive this.
  AccessLogs(LoopState* state, Sessions* sessions, const Recorders* recorders, StreamWaits* waits,
             LoopActions* actions)
      : state_(*state),
        sessions_(*sessions),
        recorders_(*recorders),
        waits_(*waits),
        actions_(*actions) {}

  // Reads up to `most` entries, and up to `most` rows where entries were dropped. Returns the
  // number of entries.
  size_t Read(Session& session, size_t most);
  // The same without rows.
  size_t ReadEntries(Session& session, size_t most);
  // Reads the logs of clients that are not hot, if their puts may be of use now. O(clients).
  void ReadCold();
  // Reads all logs, also of clients that are cold: before figures are reported. O(clients). ReadOf
  // reads those of one client, whose figures are only its own.
  void ReadAll();
  void ReadOf(core::ClientId client);
  // Reads the put in the row, if it is not known yet.
  void HandlePut(Session& session, core::SlotId slot);

 private:
  // Of a client that is not polled in every pass: all that one of its threads can have logged, up
  // to what its user has left of the pass.
  size_t ReadLane(Session& session);
  void Rescan(Session& session, size_t most);
  void RecordAccess(Session& session, const proto::Access& access) const;

  LoopState& state_;
  Sessions& sessions_;
  const Recorders& recorders_;
  StreamWaits& waits_;
  LoopActions& actions_;
  core::Tick last_sweep_{};  // when all logs were read last
};

}  // namespace ravenstore::daemon
