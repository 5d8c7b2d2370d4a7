// Gives device memory that the store holds back to jobs that the driver had none left for, and lets
// the store have it again once they have freed it.
//
// Pure: what the store holds and the time come in, limits (core::DeviceLimit) and answers come out.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/types.h"

namespace ravenstore::daemon {

class Yields {
 public:
  // `capacities`: what the store may hold of each device when nobody asks for any.
  explicit Yields(std::vector<core::Bytes> capacities);

  struct Ask {
    uint64_t asker;  // with `request` says who it is
    uint64_t request;
    size_t device;
    core::Bytes bytes;
    core::Bytes held;  // what the store held of the device, and then
    core::Bytes free;  // what nobody did
  };
  // Somebody lacks memory on a device. Who wants more than an empty store would leave gets nothing,
  // and nothing is emptied.
  // REQUIRES: ask.device < capacities.size().
  void Begin(const Ask& ask, core::Tick now);
  // Their connection is gone.
  void Forget(uint64_t asker);

  struct Limit {
    size_t device;
    core::Bytes capacity;
  };
  struct Answer {
    uint64_t asker;
    uint64_t request;
    core::Bytes given;
  };
  struct Outcome {
    std::vector<Limit> limits;
    std::vector<Answer> answers;
  };
  // `held`: what the store holds of each device now; `used`: what legacy jobs do.
  Outcome Look(const std::vector<core::Bytes>& held, const std::vector<core::Bytes>& used,
               core::Tick now);

  // Somebody waits: look again soon.
  bool waiting() const { return !pending_.empty(); }
  // The store is kept below what it could have: look again from time to time.
  bool lowered() const;

 private:
  struct Pending {
    Ask ask;
    bool begun = false;
    core::Bytes before;  // held when it began
    core::Bytes target;  // enough is given when no more than this is held
    core::Bytes last;
    core::Tick last_progress;
  };
  static bool Possible(const Pending& pending, core::Bytes held);
  void Start(Pending& pending, core::Bytes held, core::Tick now, Outcome* outcome);
  void SetLimit(size_t device, core::Bytes capacity, Outcome* outcome);

  std::vector<core::Bytes> capacities_;
  std::vector<core::Bytes> limits_;
  std::vector<core::Tick> last_yield_;
  std::vector<Pending> pending_;
};

}  // namespace ravenstore::daemon
