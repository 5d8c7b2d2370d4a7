// Clients that sleep: all their tensors are off the devices, and they hold no device memory.
//
// A client that is put to sleep may hold no page any more, so its pages leave as those of one over
// its budget do, and are destroyed. It is asleep once none is left. If that takes too long, since a
// tensor is in use for instance, it is awake as before.
//
// Owns: the sleeps that are not answered. The tables are its owner's and outlive it. Units:
// bytes. Threads: the planner loop. Errors: the replies'. Cost: O(sleepers) a Poll().
#pragma once

#include <functional>
#include <map>

#include "core/result.h"
#include "core/types.h"
#include "daemon/store_tables.h"

namespace ravenstore::daemon {

class Sleepers {
 public:
  // The bytes of devices that the client had. Errors: kWrongState (it is being put to sleep, or was
  // woken meanwhile), kTimedOut (they had not left by the deadline), kNotFound (it is gone).
  using Reply = std::function<void(core::Result<core::Bytes>)>;

  // `limits_changed`: what the client may hold is another.
  Sleepers(StoreTables* tables, std::function<void(core::ClientId)> limits_changed)
      : tables_(*tables), limits_changed_(std::move(limits_changed)) {}

  // REQUIRES, here and for Wake: the client is present.
  void Sleep(core::ClientId client, core::Tick deadline, Reply reply);
  // No error if it is awake.
  void Wake(core::ClientId client);
  // Answers those that sleep by now, or have waited too long.
  void Poll();
  // When the first has waited too long; kNever: none waits.
  core::Tick NextWake() const;

 private:
  struct Waiting {
    core::Tick deadline{};
    core::Bytes bytes;
    Reply reply;
  };

  core::Bytes HeldBy(const StoreTables::Client& client) const;
  core::Error WhyLate(const StoreTables::Client& client) const;
  void SetAsleep(core::ClientId client, bool is_asleep);

  StoreTables& tables_;
  const std::function<void(core::ClientId)> limits_changed_;
  std::map<core::ClientId, Waiting> waiting_;
};

}  // namespace ravenstore::daemon
