// What those who handle messages know of the connections that the messages come by.
//
// Threads: the control thread, unless said otherwise.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "daemon/packets.h"
#include "ipc/socket.h"
#include "ipc/unique_fd.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

// Root, and the daemon's own user.
inline bool IsAdmin(uid_t uid) {
  return uid == 0 || uid == ::geteuid();
}

// Whose things an answer may show: one user's, or (nullopt) everybody's.
using Audience = std::optional<uid_t>;

// The process at the other end of a connection, and what it has said.
struct Caller {
  uint64_t key = 0;  // the connection's, never used again
  ipc::Peer peer;
  core::ClientId client{};  // 0 until it attached, and for control-only connections
  bool reserved = false;    // its connection is one of those kept for ravenctl
  bool greeted = false;     // it has been welcomed
  bool asked = false;       // it has sent the only message of its connection

  core::TenantId user() const { return core::TenantId{peer.uid}; }
  bool IsAdmin() const { return daemon::IsAdmin(peer.uid); }
  Audience audience() const { return IsAdmin() ? Audience() : Audience(peer.uid); }
};

class Connections {
 public:
  // How much work of a connection may wait for the planner loop: one question, or kQuestion
  // notices.
  static constexpr uint32_t kNotice = 1;
  static constexpr uint32_t kQuestion = 64;

  virtual ~Connections() = default;

  // Null: the connection has ended.
  virtual Caller* FindCaller(uint64_t key) const = 0;
  bool IsOpen(uint64_t key) const { return FindCaller(key) != nullptr; }
  // Sends the packet, after what waits to be sent. It is dropped when the connection has ended, and
  // when its peer leaves too much unread.
  virtual void Send(uint64_t key, const proto::DaemonPacket& packet,
                    std::vector<ipc::UniqueFd> descriptors) = 0;
  // The same. Threads: any.
  virtual void PostAnswer(uint64_t key, proto::DaemonPacket packet) = 0;
  // Packets wait to be sent: the peer reads more slowly than the daemon sends.
  virtual bool HasUnsent(uint64_t key) const = 0;
  // Has the loop's thread run `work`, which does not run when the connection ends before its turn
  // comes and `share` is kQuestion. Until then `share` counts against the connection and its user.
  // REQUIRES: IsOpen(key).
  virtual void PostToLoop(uint64_t key, uint32_t share, std::function<void()> work) = 0;
  // Ends the connection: nothing is sent to it again.
  virtual void Forget(uint64_t key) = 0;

  void Fail(uint64_t key, uint64_t request, const core::Error& error) {
    Send(key, FailureOf(request, error), {});
  }
};

}  // namespace ravenstore::daemon
