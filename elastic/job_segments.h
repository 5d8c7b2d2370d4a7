// Segments: physical memory that the job makes and maps by itself, at addresses that it reserved.
//
// A pointer into mapped memory does not show how far a kernel goes from there. The memory next to
// it may be another segment, and one tensor may span several. So all that is mapped within one
// reservation is used together: a call that names any of it holds all of it.
//
// Segments move by recency, and only over the limit or where there is room.
//
// Threads: any, without a lock, unless a function says more. Contexts: the job's is current.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "elastic/addresses.h"
#include "elastic/driver.h"
#include "elastic/engine_options.h"
#include "elastic/job_memory.h"
#include "elastic/mover.h"
#include "elastic/parts.h"
#include "elastic/range_id.h"
#include "elastic/range_table.h"
#include "elastic/residency.h"
#include "elastic/room_waits.h"
#include "elastic/segment_table.h"
#include "elastic/streams.h"

namespace ravenstore::elastic {

class JobSegments {
 public:
  using Lock = Residency::Lock;
  // All that is pointed to, and `options`, outlives it. `granule`: of the driver.
  struct Uses {
    const Driver* driver;
    Parts* parts;
    Addresses* addresses;
    JobMemory* memory;
    SegmentTable* segments;
    RangeTable* ranges;
    Residency* residency;
    RoomWaits* waits;
    Streams* streams;
    Mover* mover;
  };
  struct Stats {
    core::Bytes moved_in;
    core::Bytes moved_out;
  };
  JobSegments(const EngineOptions& options, core::Bytes granule, const Uses& uses);

  // Addresses for segments; nothing: there are none, or no whole granules.
  std::optional<CUdeviceptr> Reserve(core::Bytes size);
  // Returns false if that is no reservation, or something is mapped there.
  bool Unreserve(CUdeviceptr begin, core::Bytes size);
  // A segment that is mapped nowhere. Errors: kOutOfMemory, kInvalidArgument.
  core::Result<RangeId> Create(core::Bytes size);
  // Maps all of it, readable and writable by the device. Errors: kInvalidArgument: it is mapped
  // already, or these are no free addresses of one reservation; kDevice.
  core::Status Map(RangeId id, CUdeviceptr begin);
  // It keeps its bytes. REQUIRES: nothing that was enqueued touches it.
  core::Status Unmap(RangeId id);
  // REQUIRES: it is mapped nowhere.
  void Destroy(RangeId id);
  // Its bytes go to `handle`, which is mapped in its place where it was mapped: at the result, or
  // nowhere (0). Then the segment is no more. Waits for all that may touch it.
  // Errors: kTimedOut, and nothing has changed; kDevice.
  core::Result<CUdeviceptr> HandOver(RangeId id, CUmemGenericAllocationHandle handle);

  // ---- Moves. With both locks.
  // The page that leaves, or comes, next.
  std::optional<PageId> Next();
  // Begins to move it. Returns false if there is none.
  bool Start(Lock& lock);
  // On the mover's thread, without a lock.
  void EndMove(const Mover::Move& move, const Parts::Replaced& replaced);
  const Stats& stats() const { return stats_; }

 private:
  using Page = SegmentTable::Page;
  using Reservation = SegmentTable::Reservation;
  using Range = RangeTable::Range;

  Part* TakeDevicePart(core::Bytes size, RoomWaits::Limit* limit, Lock& lock);
  // Of either place, the host first.
  core::Result<Part*> TakeAnyPart(core::Bytes size, Lock& lock);
  // Nothing of it moves from here on. What is mapped nowhere is held already.
  void Hold(const Range& range, Lock& lock);
  void LeaveAddresses(Range& range);
  // REQUIRES: it is mapped nowhere.
  void End(RangeId id, Lock& lock);
  core::Status AwaitPassed(Reservation* reservation, Lock& lock);
  // Copies the mapped bytes to `whole`, without the lock.
  core::Status CopyInto(const std::vector<SegmentTable::Mapping>& mappings, const Part& whole);

  const EngineOptions& options_;
  const core::Bytes granule_;
  const Driver& driver_;
  Parts& parts_;
  Addresses& addresses_;
  JobMemory& memory_;
  SegmentTable& segments_;
  RangeTable& ranges_;
  Residency& residency_;
  RoomWaits& waits_;
  Streams& streams_;
  Mover& mover_;
  Stats stats_;  // guarded by the lock of calls
};

}  // namespace ravenstore::elastic
