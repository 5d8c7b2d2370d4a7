// Legacy jobs that wait for their turn on a device (`ravenrun --wait`, `--admit`). Each waits for
// the memory that it may use, which is reserved for it until its process ends.
//
// Order: of one user that of arrival. Users take turns, so that who comes with many jobs does not
// keep others waiting: a job's place is behind as many jobs of each other user as of its own. A job
// may name several devices, of which any would do. The first that must wait for others keeps all
// behind it waiting on the devices that it named; one that must wait for its own user alone keeps
// back that user's only.
//
// What jobs that did not wait use counts as they say, but together no more than somebody truly
// uses of the device. Waiting is a courtesy: who does not wait is not stopped.
//
// A reservation that was an estimate is corrected: once the job's peak has not grown for a while,
// what it reserved beyond that and a margin is others', as soon as somebody waits for the device.
//
// Pure: the jobs' use and the time are arguments, the notifications to send are results.
//
// Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <bitset>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/types.h"
#include "daemon/admission.h"
#include "daemon/job_history.h"

namespace ravenstore::daemon {

class WaitQueue {
 public:
  static constexpr size_t kDevices = 64;
  using Devices = std::bitset<kDevices>;
  // A job counts as one that computes all the time until its kernels are in what is measured, so
  // long after it began to hold something. Too low: the next job comes before this one is seen. Too
  // high: the next one waits for nothing.
  static constexpr core::Duration kMeasuredAfter = std::chrono::seconds(10);
  // One that holds nothing computes nothing, and so long after it was admitted it counts for
  // nothing. Too low: two jobs that take long to begin come together. Too high: a job that never
  // begins keeps others waiting.
  static constexpr core::Duration kBeginsWithin = std::chrono::seconds(30);

  // `settle`: so long a peak has not grown before a reservation is corrected.
  explicit WaitQueue(core::Duration settle) : settle_(settle) {}

  struct Process {
    pid_t pid = 0;
    uint64_t start_time = 0;
    auto operator<=>(const Process&) const = default;
  };
  struct Waiter {
    Process process{};
    core::TenantId user{};
    Devices devices{};
    JobNeed need{};
    double slowdown_most = 0;  // 0: it waits for memory alone
    uint64_t connection = 0;   // to notify, with `request`
    uint64_t request = 0;
    std::string name{};
    std::string model{};
    std::optional<JobHistory::Estimate> estimate{};  // where its need comes from
  };
  // The last of its user, unless its process waits already: then it keeps that place and what it
  // asked for, and is notified at this connection. True: it has had its turn.
  bool Add(const Waiter& waiter);
  // The connection ended: who waited there waits no more.
  void Leave(uint64_t connection);
  // What it waited for, or had reserved, is others'.
  void Ended(const Process& process);

  // What a job holds of a device, by its own word.
  struct Use {
    Process process{};
    core::TenantId user{};
    pid_t run = 0;  // the process with which its run began; 0: not known
    core::Bytes bytes{};
    core::Bytes peak{};
  };
  struct Device {
    core::Bytes total{};
    core::Bytes used{};             // not free, and not the store's
    core::Bytes held{};             // the store's
    double return_bytes_per_s = 0;  // as DeviceRoom has it
    ResourceUse measured{};
    std::vector<Use> uses{};
  };
  struct Notification : Waiter {
    uint32_t position = 0;  // 1: the next; 0: it is its turn
    size_t device = 0;      // on which
    Judgement judgement{};
  };
  struct Corrected {
    Process process{};
    core::TenantId user{};
    core::Bytes bytes{};  // that it has reserved from now on
  };
  // What changed since the last notification.
  struct News {
    std::vector<Notification> notifications{};
    std::vector<Corrected> corrected{};
  };
  News Update(core::Tick now, const std::vector<Device>& devices);

  struct Place {
    uint32_t position = 0;
    core::Bytes bytes{};
    Judgement judgement{};
  };
  // As of the last Update; position 0: the process does not wait.
  Place PlaceOf(pid_t pid) const;
  // All that wait, in order, with their places.
  std::vector<Notification> All() const;

  struct Reservation {
    core::TenantId user{};
    size_t device = 0;
    core::Bytes bytes{};
    std::string model{};
    std::optional<JobHistory::Estimate> estimate{};
    core::Tick since{};
    bool looked = false;       // at what it holds
    core::Tick holds_since{};  // REQUIRES: peak is not zero
    core::Bytes peak{};
    core::Tick peak_since{};
  };
  // The reservation of the user's process, or of the one with which its run began (0: not known);
  // null: there is none.
  const Reservation* FindReservation(core::TenantId user, pid_t pid, pid_t run) const;
  // Of this very process, whichever user it has now.
  const Reservation* ReservationOf(const Process& process) const {
    const auto found = reservations_.find(process);
    return found == reservations_.end() ? nullptr : &found->second;
  }
  bool empty() const { return waiting_.empty(); }

 private:
  // Behind it in the order are others with a larger turn, or the same and a later arrival.
  struct Turn {
    uint64_t turn;
    uint64_t arrival;
    auto operator<=>(const Turn&) const = default;
  };
  struct Waiting {
    Place Shown() const;

    Waiter waiter;
    Place place{};  // as of the last Update
    uint32_t notified_position = 0;
    Verdict notified_verdict = Verdict::kMayStart;
  };
  struct Committed {
    core::Bytes reserved{};
    core::Bytes reported{};  // of jobs that did not wait
    core::Bytes At(core::Bytes used) const;
  };
  // Of one device, while those who wait are looked at in their order.
  struct Commitments {
    Committed all{};
    std::map<core::TenantId, Committed> by_user{};
    core::Bytes foreign{};  // used, but reported by no job
    size_t unmeasured = 0;
    std::set<core::TenantId> blocked_users{};
    bool all_blocked = false;
  };
  struct Choice {
    std::optional<size_t> device{};
    Judgement judgement{};  // of that, or why it waits
  };

  std::map<Turn, Waiting>::iterator Find(const Process& process);
  Devices WaitedFor() const;
  static bool IsMember(const Use& use, const Process& process, const Reservation& reservation);
  // Its compute time is not part of the measured values yet.
  static bool IsUnmeasured(core::Tick now, const Reservation& reservation);
  void Correct(core::Tick now, const std::vector<Device>& devices, News* news);
  Commitments CommitmentsOf(core::Tick now, size_t index, const Device& device) const;
  static DeviceRoom RoomOn(const Device& device, Commitments& commitments, const Waiter& waiter);
  Choice Choose(const Waiter& waiter, const std::vector<Device>& devices,
                std::vector<Commitments>& commitments) const;
  void BlockBehind(const Waiter& waiter, const std::vector<Device>& devices,
                   std::vector<Commitments>& commitments) const;
  void Reserve(core::Tick now, const Waiter& waiter, size_t device, Commitments* commitments);

  const core::Duration settle_;
  std::map<Turn, Waiting> waiting_;  // in order
  std::map<Process, Reservation> reservations_;
  std::map<size_t, uint64_t> turns_;  // the turn that each device's last one had
  uint64_t next_arrival_ = 0;
};

}  // namespace ravenstore::daemon
