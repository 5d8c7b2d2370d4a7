// Maps what is away: a kernel uses memory on the host by the same addresses, over the link.
//
// A page that is away is mapped only when a call begins that uses it as an argument, on that call's
// thread. A kernel that reaches it otherwise faults, which ends the job's context. So as soon as
// the job shows that it reaches memory in other ways, all that is away is mapped, and stays so.
//
// Threads: any, with both locks, which are released while memory is mapped. Contexts: the job's is
// current. Errors: those of mapping are reported to the residency, and nothing moves any more.
#pragma once

#include <cstdint>
#include <span>

#include "core/plan/units.h"
#include "core/result.h"
#include "core/types.h"
#include "elastic/driver.h"
#include "elastic/engine_options.h"
#include "elastic/job_memory.h"
#include "elastic/mover.h"
#include "elastic/parts.h"
#include "elastic/range_id.h"
#include "elastic/range_table.h"
#include "elastic/residency.h"
#include "elastic/segment_table.h"

namespace ravenstore::elastic {

class Reachability {
 public:
  using Lock = Residency::Lock;
  // All that is pointed to, and `options`, outlives it.
  struct Uses {
    const Driver* driver;
    Parts* parts;
    JobMemory* memory;
    SegmentTable* segments;
    RangeTable* ranges;
    Residency* residency;
    Mover* mover;
  };
  Reachability(const EngineOptions& options, const Uses& uses);

  // The range's pages, where they are. REQUIRES: it is no segment, and its pages are held.
  // Errors: kOutOfMemory; kDevice.
  core::Status ReachRange(uint32_t number, Lock& lock);
  // Reports an error of these to the residency: nothing moves any more.
  void Check(const core::Status& reached);
  // The same of all that a call uses, with its errors reported. `is_unknown`: it may touch
  // anything. Returns the time that it took, zero if all was mapped.
  core::Duration ReachCall(std::span<const RangeId> ranges, std::span<const PageId> pages,
                           bool is_unknown, Lock& lock);
  // A segment's page, which could not be mapped when it was moved.
  void ReachPage(PageId id, Lock& lock);

  // Pages are mapped when they come to the host from now on. With the scheduler's lock.
  void SetMapsAway();
  bool maps_away() const { return maps_away_; }
  // The same, and pages that came before are mapped, too. Returns whether there were any.
  bool MapAll(Lock& lock);

 private:
  core::Status ReachUnit(core::plan::Unit unit, Lock& lock);
  // Maps live pages that are off the device now, but not those that leave later. Returns whether
  // there were any.
  bool ReachLive(Lock& lock);

  const EngineOptions& options_;
  const Driver& driver_;
  Parts& parts_;
  JobMemory& memory_;
  SegmentTable& segments_;
  RangeTable& ranges_;
  Residency& residency_;
  Mover& mover_;
  bool maps_away_;       // a page is mapped when it comes to the host,
  bool all_mapped_;      // and the pages that came before are mapped, too
  bool logged_ = false;  // that all is mapped
};

}  // namespace ravenstore::elastic
