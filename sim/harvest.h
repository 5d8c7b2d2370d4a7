// A pool of harvested memory in a replay: what its owner leaves, by time; how its chunks come and
// go; how well it is used, and how long giving it back takes.
//
// Threads: one at a time. Units: byte-seconds for what bytes did over time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace ravenstore::sim {

// From `at` on, counted from the replay's beginning, the pool may hold at most so much.
struct HarvestLimit {
  core::Duration at{0};
  core::Bytes most;
};

// A limit was lowered below what the pool held.
struct GiveBack {
  core::Tick begin{};
  core::Duration took{0};
  core::Bytes bytes;        // by so much the pool was above its limit
  core::Bytes copied;       // moved on to the host meanwhile, with what was on its way already
  core::Bytes in_flight;    // on its way to and from the device at the beginning
  core::Duration chunks{};  // what it takes to destroy the chunks that went
  bool done = false;        // false: the limit rose, or the replay ended, before
};

struct HarvestUse {
  double idle = 0;    // below the limit
  double held = 0;    // chunks
  double useful = 0;  // bytes, from their copy's end to the last copy of them to the device
  std::vector<GiveBack> give_backs;
};

class HarvestedPool {
 public:
  // `limits` are by time and outlive this; `chunk_changed` is the hardware's.
  HarvestedPool(const std::vector<HarvestLimit>& limits, core::Duration chunk_changed,
                core::Tick begin)
      : limits_(limits), chunk_changed_(chunk_changed), begin_(begin), now_(begin) {}

  // When the limit changes next; kNever: it does not.
  core::Tick NextChange() const;
  // It does: what it is now. REQUIRES: `now` is NextChange().
  core::Bytes Change(core::Tick now);

  // A chunk is asked for, or is to go: when that is done.
  core::Tick Grow(core::Bytes size, core::Tick now);
  core::Tick Shrink(core::Bytes size, core::Tick now);
  void Shrunk(core::Bytes size, core::Tick now);

  // What lies here moves on to the host.
  void BeginMoveOn(core::Bytes bytes);
  void EndMoveOn(core::Bytes bytes) { moving_on_ -= bytes; }
  // Copies to and from the device.
  void BeginCopy(core::Bytes bytes) { in_flight_ += bytes; }
  void EndCopy(core::Bytes bytes) { in_flight_ -= bytes; }
  // What lies here since `since` was copied to the device.
  void Read(core::Bytes bytes, core::Tick since, core::Tick now);

  // The replay ends.
  HarvestUse End(core::Tick now);

 private:
  void Pass(core::Tick now);
  core::Duration TimeOf(core::Bytes chunk) const;
  core::Tick Occupy(core::Bytes chunk, core::Tick now);
  // Those whose limit the pool keeps now.
  void EndGiveBacks(core::Tick now, bool done);

  struct Pending {
    GiveBack give_back;
    core::Bytes limit;
  };

  const std::vector<HarvestLimit>& limits_;
  const core::Duration chunk_changed_;
  const core::Tick begin_;
  core::Tick now_;  // up to here use_ is counted
  size_t next_ = 0;
  core::Bytes most_;
  core::Bytes held_;  // chunks, with those that come or go
  core::Tick driver_free_{};
  core::Bytes moving_on_;
  core::Bytes in_flight_;
  core::Duration going_{0};  // what the chunks that are being destroyed take
  std::vector<Pending> pending_;
  HarvestUse use_;
};

}  // namespace ravenstore::sim
