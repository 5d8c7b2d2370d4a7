// Who records what clients do (`ravenctl record`, daemon/recorder.h): each user on one connection
// at a time, of its own clients; root and the daemon's own user of everybody's.
//
// Threads: the control thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "core/types.h"
#include "daemon/connections.h"
#include "daemon/loop.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

class Recordings {
 public:
  // How many users may record at a time: each keeps some megabytes. Root and the daemon's own user
  // may record beyond that.
  static constexpr size_t kMost = 16;
  // What a client calls a tensor. In the loop's thread.
  using NameOf = std::function<std::string(core::ClientId, core::NameId)>;

  // All that is pointed to outlives this.
  Recordings(Loop* loop, Connections* connections, NameOf name_of)
      : loop_(loop), connections_(connections), name_of_(std::move(name_of)) {}

  // Begins the connection's recording, or goes on with it; answers with what is new in it.
  void Handle(const Caller& caller, uint64_t request, const proto::Record& record);
  // The connection has ended, and its recording, if it had one, with it.
  void Forget(uint64_t key);

 private:
  // Errors: kLimit, and the message says what to do.
  core::Status MayBegin(const Caller& caller) const;

  Loop* const loop_;
  Connections* const connections_;
  const NameOf name_of_;
  std::map<uint64_t, core::TenantId> users_;  // by the connections that record
};

}  // namespace ravenstore::daemon
