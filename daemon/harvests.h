// What is harvested of each device (daemon/harvest.h), with the pool that has it.
//
// Owns: the harvests. Threads: the planner loop. Units: bytes. Errors: as Return says. Cost:
// O(devices) a call.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "daemon/harvest.h"
#include "daemon/loop_state.h"
#include "daemon/memory_watch.h"

namespace ravenstore::daemon {

class Harvests {
 public:
  struct Options {
    core::PoolId pool{};
    core::DeviceId device{};  // whose memory it is
    Harvest::Options options;
  };

  // `state` outlives this.
  Harvests(LoopState* state, const std::vector<Options>& harvests);

  // Applies new limits of the pools, after the watch saw every device.
  void Look(const std::vector<MemoryWatch::Seen>& seen);
  // Returns `bytes` of the device's harvested memory within that time. `then` gets the outcome.
  // Errors: kInvalidArgument if less is harvested, or none.
  core::Status Return(core::DeviceId device, core::Bytes bytes, core::Duration within,
                      Harvest::Then then);
  // A chunk of the pool begins to come or to go, or has ended that.
  void NoteChunk(core::PoolId pool, bool begins);
  // Memory of the pool could not be destroyed.
  void Lose(core::PoolId pool, core::Bytes bytes);
  // Ends give-backs that are complete, and reports those that are late.
  void Update();
  // When Update reports something even if nothing changes; kNever: there is no such time.
  core::Tick NextWake() const;
  // Nullopt: nothing is harvested of the device.
  std::optional<Harvest::View> View(core::DeviceId device) const;

 private:
  struct One {
    core::PoolId pool{};
    Harvest harvest;
    int in_motion = 0;   // chunks that come or go
    core::Tick moved{};  // when the last one did
  };

  // Harvested memory of the device that can be returned.
  core::Bytes HeldOf(core::DeviceId device) const {
    return state_.views().Harvested(device) - state_.views().HarvestStuck(device);
  }
  std::string WhyNotGiven(core::PoolId pool) const;

  LoopState& state_;
  std::map<core::DeviceId, One> harvests_;
};

}  // namespace ravenstore::daemon
