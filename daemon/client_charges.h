// The daemon's own memory that clients make it hold, counted to their users (core/share.h).
//
// Owns: the counts. Threads: the planner loop. Units: bytes. Errors: kLimit where a user has no
// share left. Cost: O(1).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/result.h"
#include "core/share.h"
#include "core/types.h"
#include "daemon/session.h"

namespace ravenstore::daemon {

class ClientCharges {
 public:
  // For a tensor or a waiting create, with the planner's memory for it.
  static constexpr uint64_t kTensorMemory = 512;

  // `memory`: of the clients of all users.
  explicit ClientCharges(core::Bytes memory)
      : shares_("bytes of the daemon's memory", memory.count(), core::Shares::Unit::kBytes) {}

  core::Status Charge(Session& session, uint64_t bytes) {
    RAVEN_RETURN_IF_ERROR(shares_.Take(session.attachment().tenant, bytes));
    session.charged += bytes;
    return core::Ok();
  }
  void Refund(Session& session, uint64_t bytes) {
    shares_.Give(session.attachment().tenant, bytes);
    session.charged -= bytes;
  }
  // Keeps the reason why the last request of the slot failed, which the client may ask for.
  void RememberFailure(Session& session, core::SlotId slot, std::string message) {
    const bool charged = Charge(session, Session::CostOf(message)).ok();
    Refund(session, session.RememberFailure(slot, std::move(message), charged));
  }

 private:
  core::Shares shares_;
};

}  // namespace ravenstore::daemon
