// Accepts connections: the listening socket, and how many each user may have.
//
// Users share the places of connections as they share all else (core/share.h). A few beyond those
// are kept for root and for the daemon's own user, so that a tool gets through to a daemon whose
// places are taken. A connection that gets no place is sent the reason, and its socket is closed
// with the others that end (ending_sockets.h). No more connections are accepted until most of those
// are closed, nor while the process has no descriptors.
//
// Threads: the control thread, in whose epoll the listening socket is.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "core/result.h"
#include "core/share.h"
#include "core/types.h"
#include "daemon/ending_sockets.h"
#include "daemon/turn_budget.h"
#include "ipc/socket.h"

namespace ravenstore::daemon {

class Acceptor {
 public:
  // For connections whose user is not known.
  static constexpr uid_t kUnknownUid = ~uid_t{0};

  // All that is pointed to outlives the acceptor.
  struct Options {
    int epoll;
    uint64_t key;       // of the listening socket there
    uint64_t clients;   // of all users, at most
    TurnBudget* turns;  // what the control thread does for each user
    core::Shares* descriptors;
    EndingSockets* ending;
    // A user whose connections may not be taken, and why.
    std::function<core::Status(uid_t)> may_connect;
    // Takes both over, or fails and leaves them. `reserved`: it has one of the kept places.
    std::function<core::Status(ipc::UniqueFd& socket, ipc::Peer& peer, bool reserved)> admit;
  };

  Acceptor(ipc::Listener listener, Options options);
  // Errors: kSystem.
  core::Status Begin();
  // For good. One that was accepted and not admitted yet is closed.
  void Stop();

  // The listening socket is readable.
  void AcceptSome();
  // A connection of the user's is gone.
  void GivePlace(core::TenantId user, bool reserved);
  // A descriptor came free.
  void OnClosed() { closed_one_ = true; }
  // When it is to go on at the latest, if it has paused; else kNever.
  core::Tick paused_until() const { return paused_until_.value_or(core::kNever); }
  // Goes on if it has paused and may.
  void Resume();

 private:
  void Admit(ipc::UniqueFd socket, ipc::Peer peer);
  // Counts one more connection of the user; with `*reserved` one of those kept for ravenctl.
  core::Status TakePlace(uid_t uid, bool* reserved);
  void Reject(ipc::UniqueFd socket, uid_t uid, const core::Error& why);
  // Takes no connections until some descriptor may have come free.
  void Pause(const core::Error& why);
  bool Watch();

  ipc::Listener listener_;
  const Options options_;
  core::Shares places_;
  std::map<core::TenantId, uint64_t> reserved_;  // connections of those kept for ravenctl
  uint32_t rejected_ = 0;                        // sockets that are not closed yet
  ipc::UniqueFd accepted_;                       // whose peer could not be looked at yet
  std::optional<core::Tick> paused_until_;       // no connections are accepted
  bool pause_was_logged_ = false;                // and none was accepted since
  bool closed_one_ = false;                      // a connection, while it rests
};

}  // namespace ravenstore::daemon
