// A job's calls: each holds what it uses from Begin, before it is enqueued, to End, after that.
//
// A call whose ranges are all resident takes only the lock of calls, and is logged (call_log.h).
// Where not all fits a job passes its calls little ahead of the GPU: each waits until the GPU is
// near. A call whose range is away waits for it for a while if the plan expects the call. Else the
// range is used in place. A page whose copy has begun is waited for.
//
// Threads: any, without a lock, unless a function says more. Contexts: the job's is current.
// Errors: none; what fails is reported to the residency, and the call goes on.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/types.h"
#include "elastic/addresses.h"
#include "elastic/call_clock.h"
#include "elastic/call_names.h"
#include "elastic/engine_options.h"
#include "elastic/job_memory.h"
#include "elastic/pace.h"
#include "elastic/point.h"
#include "elastic/range_id.h"
#include "elastic/range_table.h"
#include "elastic/reachability.h"
#include "elastic/residency.h"
#include "elastic/segment_table.h"
#include "elastic/streams.h"
#include "elastic/table_finder.h"

namespace ravenstore::elastic {

class Submissions {
 public:
  using Lock = Residency::Lock;
  // What one call touches.
  struct Use {
    uint64_t identity;
    CUstream stream;
    std::span<const CUdeviceptr> addresses;
    bool unknown;  // it may touch any range
    Caller caller = {};
    TableFinder::Kind kind = {};               // what it runs
    std::span<const CUdeviceptr> others = {};  // words that may be addresses of other memory
  };
  // A call between Begin and End.
  struct Submission {
    std::vector<RangeId> ranges;
    std::vector<PageId> pages;                             // of the segments among these
    std::vector<SegmentTable::Reservation*> reservations;  // of these segments
    CUstream stream = nullptr;
    bool unknown = false;
    int64_t call = 0;  // its number, for the plan
    bool ends_stretch = false;
    TableFinder::Search* search = nullptr;
  };
  struct Stats {
    uint64_t uses = 0;
    uint64_t uses_in_place = 0;
    core::Bytes bytes_in_place;
    uint64_t waits = 0;  // for what they name to move
    core::Duration waited{};
    uint64_t paces = 0;  // calls that waited for the GPU to come nearer
  };
  // All that is pointed to, and `options`, outlives it.
  struct Uses {
    const Driver* driver;
    JobMemory* memory;
    SegmentTable* segments;
    RangeTable* ranges;
    Residency* residency;
    Reachability* reachability;
    Streams* streams;
    CallClock* clock;
    // Whether the engine's thread has something to do. Asked with both locks.
    std::function<bool()> has_work;
  };
  Submissions(const EngineOptions& options, const Uses& uses);

  // The submission is the caller's until End.
  Submission* Begin(const Use& use);
  void End(Submission* submission, bool enqueued);
  // The range at the address, and all that is used together with it, stays where it is from now on.
  // `is_followed`: the address stood in memory that kernels read.
  void Pin(CUdeviceptr address, bool is_followed);

  // ---- For the engine's thread. With both locks.
  // Asks the driver how far the GPU has come, and what searches for tables have found.
  void Poll();
  // Something waits for Poll().
  bool IsUnderWay() const { return pacing_ > 0 || tables_.AnyUnderWay(); }
  const Stats& stats() const { return stats_; }

 private:
  using Range = RangeTable::Range;
  struct Begun {
    core::Tick at;  // before what it waited for
    core::Duration waited{};
    core::Bytes in_place{};
    bool is_unknown = false;
  };

  // A call whose ranges are all there; null: it may have to wait. With the lock of calls alone.
  Submission* BeginIfReady(const Use& use);
  // The call is about to be enqueued. With the lock of calls alone, as the next one.
  void NoteBegun(const Use& use, Submission* submission, const Begun& begun);
  // The call does not hold its ranges any more; it used them up to the point.
  void LeaveRanges(Submission* submission, const std::optional<Point>& point);
  Submission* New(const Use& use);
  // The GPU is too far behind for another call.
  bool MustWait() const;
  void KeepPace(Lock& lock);
  // Calls visit(number, range) for each range that the addresses name, once. Returns false, and
  // ends, as soon as `visit` does.
  template <typename Visit>
  bool VisitRanges(std::span<const CUdeviceptr> addresses, Visit visit) {
    ++stamp_;
    for (const CUdeviceptr address : addresses) {
      const uint32_t number = ranges_.At(address);
      if (number == Addresses::kNoOwner) continue;
      Range& range = ranges_[number];
      if (std::exchange(range.stamp, stamp_) == stamp_) continue;
      if (!visit(number, range)) return false;
    }
    return true;
  }
  // Counts the call as a holder of all that it uses.
  void AddUses(const Use& use, Submission* submission);
  // Each range of the call is held: its pages stay where they are.
  void Hold(const Submission& submission, Lock& lock);
  void HoldRange(uint32_t number, core::Tick deadline, Lock& lock);
  // Waits until no segment of the call moves, and for an unknown one until nothing does.
  void AwaitMoves(const Submission& submission, Lock& lock);
  bool IsMoving(const Submission& submission) const;
  // The search of the call's arguments for tables, after the launch; null: none is needed.
  TableFinder::Search* BeginSearch(const Use& use);
  void PollSearches();

  const EngineOptions& options_;
  const std::function<bool()> has_work_;
  JobMemory& memory_;
  OpenRanges& open_;
  SegmentTable& segments_;
  RangeTable& ranges_;
  Residency& residency_;
  Reachability& reachability_;
  Streams& streams_;
  CallClock& clock_;
  // All below: guarded by the lock of calls.
  TableFinder tables_;
  Pace pace_;
  uint32_t pacing_ = 0;          // calls that wait for the GPU to come nearer
  std::optional<int64_t> slow_;  // under way for so long that no call waits for it any more
  std::vector<std::unique_ptr<Submission>> all_;
  std::vector<Submission*> unused_;
  uint64_t stamp_ = 0;
  Stats stats_;
};

}  // namespace ravenstore::elastic
