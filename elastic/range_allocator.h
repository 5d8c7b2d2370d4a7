// Allocations: ranges that are created and freed, with room on the device or, after a while, on
// the host.
//
// Threads: any, without a lock. Contexts: the job's is current.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/result.h"
#include "core/types.h"
#include "elastic/call_clock.h"
#include "elastic/engine_options.h"
#include "elastic/job_memory.h"
#include "elastic/parts.h"
#include "elastic/pinner.h"
#include "elastic/range_table.h"
#include "elastic/reachability.h"
#include "elastic/residency.h"
#include "elastic/room_waits.h"
#include "elastic/streams.h"

namespace ravenstore::elastic {

class RangeAllocator {
 public:
  using Lock = Residency::Lock;
  // All that is pointed to, and `options`, outlives it. `granule`: of the driver.
  struct Uses {
    const Parts* parts;
    JobMemory* memory;
    RangeTable* ranges;
    Residency* residency;
    Reachability* reachability;
    RoomWaits* waits;
    Streams* streams;
    Pinner* pinner;
    const CallClock* clock;
  };
  RangeAllocator(const EngineOptions& options, core::Bytes granule, const Uses& uses);

  // Errors: kOutOfMemory: neither place has room within its limit.
  core::Result<CUdeviceptr> Allocate(core::Bytes size, CUstream stream, bool ordered);
  // Returns false if nothing begins there.
  bool Free(CUdeviceptr address, CUstream stream, bool ordered);

 private:
  // The range lives on return if all its pages are resident. Else it does not live yet, or there
  // is none: kNoOwner. Needs only the lock of calls.
  uint32_t CreateIfResident(const RangeTable::Request& request);
  // Its pages are held, on the device or the host. Errors: kOutOfMemory.
  core::Status HoldCreated(uint32_t number, Lock& lock);
  // Returns false if it is refused: its memory does not come in time.
  bool AwaitCreated(uint32_t number, RoomWaits::Limit* limit, Lock& lock);
  core::Status ReachCreated(uint32_t number, Lock& lock);
  // What is in use may be free soon.
  bool ComesFree() const;

  const EngineOptions& options_;
  const core::Bytes granule_;
  const Parts& parts_;
  JobMemory& memory_;
  OpenRanges& open_;
  RangeTable& ranges_;
  Residency& residency_;
  Reachability& reachability_;
  RoomWaits& waits_;
  Streams& streams_;
  Pinner& pinner_;
  const CallClock& clock_;
};

}  // namespace ravenstore::elastic
