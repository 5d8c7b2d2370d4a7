// Legacy jobs that wait for their turn on a device (`ravenrun --wait`): each for so much memory as
// it may use, which is promised to it until its process ends.
//
// Order: of one user that of arrival. Users take turns, so that who comes with many jobs does not
// keep others waiting: a job's place is behind as many jobs of each other user as of its own. The
// first that must wait for others keeps all behind it waiting; one that must wait for its own user
// alone keeps back that user's only.
//
// What jobs that did not wait use counts as they say, but together no more than somebody truly
// uses of the device. Waiting is a courtesy: who does not wait is not stopped.
//
// Pure: what the jobs use comes in, what is to be told comes out.
//
// Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "core/types.h"

namespace ravenstore::daemon {

class WaitQueue {
 public:
  struct Process {
    pid_t pid = 0;
    uint64_t start_time = 0;
    auto operator<=>(const Process&) const = default;
  };
  struct Waiter {
    Process process;
    core::TenantId user{};
    size_t device = 0;
    core::Bytes bytes;
    uint64_t connection = 0;  // who is told, with `request`
    uint64_t request = 0;
  };
  // The last of its user, unless its process waits already: then it keeps that place and what it
  // asked for, and is told at this connection. True: it has had its turn.
  bool Add(const Waiter& waiter);
  // The connection ended: who waited there waits no more.
  void Leave(uint64_t connection);
  // What it waited for, or was promised, is others'.
  void Ended(const Process& process);

  // What a job holds of the device, by its own word.
  struct Use {
    Process process;
    core::TenantId user{};
    core::Bytes bytes;
  };
  struct Told : Waiter {
    uint32_t position = 0;  // 1: the next; 0: it is its turn
  };
  // `used`: what of the device's `total` is not free and not the store's. The result is what
  // changed since it was told last.
  std::vector<Told> Update(size_t device, core::Bytes total, core::Bytes used,
                           const std::vector<Use>& uses);

  struct Place {
    uint32_t position;
    core::Bytes bytes;
  };
  // As of the last Update; 0: the process does not wait.
  Place PlaceOf(pid_t pid) const;
  bool WaitsFor(size_t device) const;
  bool empty() const { return waiting_.empty(); }

 private:
  // Behind it in the order are others with a larger turn, or the same and a later arrival.
  struct Turn {
    uint64_t turn;
    uint64_t arrival;
    auto operator<=>(const Turn&) const = default;
  };
  struct Waiting {
    Waiter waiter;
    uint32_t position = 0;
    uint32_t told = 0;
  };
  struct Promise {
    core::TenantId user{};
    size_t device = 0;
    core::Bytes bytes;
  };
  struct Committed {
    core::Bytes promised;
    core::Bytes said;  // of jobs that did not wait
    core::Bytes At(core::Bytes used) const;
  };
  struct Commitments {
    Committed all;
    std::map<core::TenantId, Committed> by_user;
  };
  std::map<Turn, Waiting>::iterator Find(const Process& process);
  Commitments CommitmentsOf(size_t device, core::Bytes total, const std::vector<Use>& uses);

  std::map<Turn, Waiting> waiting_;  // in order
  std::map<Process, Promise> promises_;
  std::map<size_t, uint64_t> turns_;  // the turn that each device's last one had
  uint64_t next_arrival_ = 0;
};

}  // namespace ravenstore::daemon
