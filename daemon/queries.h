// Questions about the store that only the planner loop can answer: figures, listings, explanations
// (daemon/admin.h).
//
// Threads: the control thread.
#pragma once

#include <cstddef>

#include "core/types.h"
#include "daemon/connections.h"
#include "daemon/loop.h"
#include "daemon/names.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

class Queries {
 public:
  // All that is pointed to outlives this.
  Queries(size_t devices, core::Tick started, const Names* names, Loop* loop,
          Connections* connections)
      : devices_(devices),
        started_(started),
        names_(names),
        loop_(loop),
        connections_(connections) {}

  // Answers with what the caller may see. False when the message is no such question: nothing was
  // done.
  bool Handle(const Caller& caller, const proto::ClientPacket& packet);

 private:
  // In the loop's thread.
  proto::DaemonPacket AnswerOf(const proto::ClientPacket& packet, const Audience& audience,
                               core::ClientId client) const;

  const size_t devices_;
  const core::Tick started_;
  const Names* const names_;
  Loop* const loop_;
  Connections* const connections_;
};

}  // namespace ravenstore::daemon
