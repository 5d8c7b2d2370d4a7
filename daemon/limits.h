// What users, clients and legacy jobs may have, and who may change it (`ravenctl limits`).
//
// A user's budgets are kept here and sent to the planner. A client's budgets are the planner's own.
// What a legacy job may see of a device is on its page (daemon/legacy.h).
//
// Threads: the control thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/events.h"
#include "core/result.h"
#include "core/topology.h"
#include "core/types.h"
#include "daemon/connections.h"
#include "daemon/legacy.h"
#include "daemon/loop.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

class Limits {
 public:
  // `defaults`: every user's budgets until changed. `guaranteed_by_default`: on the largest device,
  // to a user without a guarantee. `other_pools`: those that are neither a device's nor the host's.
  // All that is pointed to outlives this.
  Limits(core::Budgets defaults, core::Bytes guaranteed_by_default,
         std::map<core::PoolId, core::Pool> other_pools, LegacyLedger* ledger, Loop* loop,
         Connections* connections);

  // The user's. Valid until it is changed.
  const core::Budgets& Of(uid_t uid) { return budgets_.try_emplace(uid, defaults_).first->second; }
  // In force for all users from now on, but for what was changed of theirs.
  void SetDefaults(core::Budgets defaults);

  // Changes what the message names, and answers with what is in force then. 0 changes nothing,
  // proto::kLimitNotSet takes a change back.
  // Errors: kPermission (only root and the daemon's own user may),
  //   kInvalidArgument (a guarantee, weight or priority of one client; a weight or priority that is
  //   none), kUnsupported (a pause),
  //   kNotFound (the client; a pool, then with the names of those that there are).
  void Handle(const Caller& caller, uint64_t request, const proto::SetLimits& limits);

 private:
  void SetJob(const Caller& caller, uint64_t request, const proto::SetLimits& limits);
  void SetUser(const Caller& caller, uint64_t request, const proto::SetLimits& limits);
  void SetClient(const Caller& caller, uint64_t request, const proto::SetLimits& limits);
  // Of a pool that is neither a device's nor the host's.
  std::optional<core::PoolId> FindPool(const std::string& name) const;
  core::Status CheckPools(const proto::SetLimits& limits) const;
  // `budgets` with what the message changes of them; `unset`: what they are unless changed.
  // Threads: any. REQUIRES: CheckPools.
  core::Budgets Changed(core::Budgets budgets, const proto::SetLimits& limits,
                        const core::Budgets& unset) const;
  // Threads: any.
  proto::DaemonPacket AnswerOf(uint64_t request, const core::Budgets& budgets) const;

  core::Budgets defaults_;
  const core::Bytes guaranteed_by_default_;
  const std::map<core::PoolId, core::Pool> other_pools_;
  LegacyLedger* const ledger_;
  Loop* const loop_;
  Connections* const connections_;
  std::map<uid_t, core::Budgets> budgets_;
};

// As the wire has it.
proto::TenantPriority PriorityOf(core::TenantPriority priority);

}  // namespace ravenstore::daemon
