// How long allocations wait for room on the device, and how long they have waited.
//
// Units: nanoseconds. Threads: one at a time (the lock of calls). Errors: none.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "elastic/engine_options.h"
#include "elastic/streams.h"
#include "ipc/clock.h"

namespace ravenstore::elastic {

class RoomWaits {
 public:
  // Of one allocation: `patience` without work for the GPU, and longer while it has some, since
  // waiting then costs the job nothing.
  class Limit {
   public:
    Limit(core::Duration patience, Streams* streams)
        : patience_(patience),
          streams_(*streams),
          until_(ipc::Now() + patience),
          latest_(ipc::Now() + patience * kBusyShare) {}
    bool IsOver(core::Tick now) {
      if (now < latest_ && !streams_.Idle()) until_ = now + patience_;
      return now >= until_;
    }

   private:
    static constexpr int kBusyShare = 10;  // times as long, while the GPU has work

    const core::Duration patience_;
    Streams& streams_;
    core::Tick until_;
    const core::Tick latest_;
  };
  struct Stats {
    uint64_t waits = 0;
    core::Duration waited{};
  };

  // Both outlive it.
  RoomWaits(const EngineOptions& options, Streams* streams)
      : options_(options), streams_(*streams) {}

  Limit Begin() { return {options_.patience, &streams_}; }
  // An allocation has waited since `began`.
  void Note(core::Tick began) {
    const core::Tick now = ipc::Now();
    ++stats_.waits;
    stats_.waited += now - began;
    if (options_.shown) {
      options_.shown->Note(Shown::kAllocations, {"allocations", nullptr}, {.waited = now - began},
                           now);
    }
  }
  const Stats& stats() const { return stats_; }

 private:
  const EngineOptions& options_;
  Streams& streams_;
  Stats stats_;
};

}  // namespace ravenstore::elastic
