// Gives device memory that the store holds back to jobs that the driver had none left for, and lets
// the store have it again once they have freed it.
//
// Nothing that a job says is believed: what it asks for is bounded by what it may have, what it
// gets by what others are guaranteed, and how much its user gets in how short a time by the
// device's size each kRefill. What the store may have again is what is truly free.
//
// Pure: what the store holds and the time come in, limits (core::DeviceLimit) and answers come out.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/types.h"

namespace ravenstore::daemon {

class ReclaimRequests {
 public:
  // `capacities`: what the store may hold of each device without requests.
  explicit ReclaimRequests(std::vector<core::Bytes> capacities);

  // A user may reclaim up to a device's capacity in one burst. That allowance refills in this time.
  static constexpr core::Duration kRefill = std::chrono::seconds(30);

  struct Reclaim {
    uint64_t requester = 0;  // with `request` says who it is
    uint64_t request = 0;
    core::TenantId user{};
    size_t device = 0;
    core::Bytes bytes;
    core::Bytes most;  // the job may have on the device; more is not given
    core::Bytes kept;  // of what the store holds: guaranteed to its clients
    core::Bytes held;  // what the store held of the device, and then
    core::Bytes free;  // what no process held
  };
  // A job lacks memory on a device. One that wants more than it may have, or than the store can
  // leave, gets nothing, and nothing is emptied; what is free already is not taken from the store.
  // REQUIRES: ask.device < capacities.size().
  void Begin(Reclaim reclaim, core::Tick now);
  // Their connection is gone.
  void Forget(uint64_t requester);

  struct Limit {
    size_t device;
    core::Bytes capacity;
  };
  struct Answer {
    uint64_t requester;
    uint64_t request;
    core::Bytes given;
  };
  struct Outcome {
    std::vector<Limit> limits;
    std::vector<Answer> answers;
  };
  // `held`: what the store holds of each device now. `used`: how much of the store's capacity on
  // each device others use. While `used` is empty (not read), the store gets nothing back.
  Outcome Update(const std::vector<core::Bytes>& held, const std::vector<core::Bytes>& used,
                 core::Tick now);

  // A request waits: update again soon.
  bool waiting() const { return !pending_.empty(); }
  // The store is kept below what it could have: update again from time to time.
  bool lowered() const;

 private:
  struct Pending {
    Reclaim reclaim;
    bool begun = false;
    core::Bytes before;  // held when it began
    core::Bytes target;  // enough is given when no more than this is held
    core::Bytes last;
    core::Tick last_progress;
  };
  // What the store must give up for the ask.
  static core::Bytes Lacking(const Reclaim& reclaim);
  bool Possible(const Pending& pending, core::Bytes held, core::Tick now);
  void Start(Pending& pending, core::Bytes held, core::Tick now, Outcome* outcome);
  void SetLimit(size_t device, core::Bytes capacity, Outcome* outcome);

  std::vector<core::Bytes> capacities_;
  std::vector<core::Bytes> limits_;
  std::vector<core::Tick> last_reclaim_;
  std::vector<Pending> pending_;
  struct Given {
    core::Bytes bytes;  // lately; less every moment
    core::Tick at{};
  };
  Given& GivenTo(const Reclaim& reclaim, core::Tick now);
  std::map<std::pair<core::TenantId, size_t>, Given> given_;  // by user and device
};

}  // namespace ravenstore::daemon
