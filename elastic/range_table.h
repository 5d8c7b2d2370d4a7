// A job's ranges: what it has allocated, by number and by address, and which calls hold them.
//
// A range's number is its tensor's in JobMemory, and the owner of its addresses. A segment
// (job_segments.h) is a range, too, with pages of its own.
//
// Owns: the ranges. Units: bytes. Threads: one at a time (the lock of calls); New() wants both
// locks where HasUnused() is false. Cost: O(1) a call, unless it says more. Errors: none.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "core/types.h"
#include "elastic/addresses.h"
#include "elastic/call_clock.h"
#include "elastic/engine_options.h"
#include "elastic/job_memory.h"
#include "elastic/point.h"
#include "elastic/range_id.h"
#include "elastic/segment_table.h"

namespace ravenstore::elastic {

class RangeTable {
 public:
  struct Range {
    CUdeviceptr begin = 0;
    core::Bytes size;  // whole granules
    core::Bytes asked;
    SegmentTable::Pages pages;  // none but of a segment
    bool live = false;
    bool pinned = false;
    uint32_t holders = 0;     // submissions between Begin and End, and a pin
    std::vector<Point> uses;  // the last of each stream, since no submission held it
    // It is freed when no submission holds it: on the stream, behind the points.
    bool is_freed = false;
    uint32_t free_stream = 0;
    uint32_t created_on = 0;  // as Request
    bool is_placed = false;
    uint64_t stamp = 0;  // of the submission that used it last
    // For people.
    uint64_t calls = 0;
    core::Tick allocated{};
    core::Tick used{};

    bool is_segment() const { return pages.second > 0; }
  };
  struct Request {
    core::Bytes asked;
    core::Bytes size;
    uint32_t on = 0;  // the stream for whose work it is; 0: for any
  };
  struct Stats {
    core::Bytes live;
    core::Bytes pinned;
    core::Bytes peak;  // of live
    core::Bytes most;  // of LiveBytes()
  };
  // Called with LiveBytes() when they are more than ever.
  using Grew = std::function<void(core::Bytes live)>;

  // All that is pointed to, and `options`, outlives the table.
  RangeTable(const EngineOptions& options, JobMemory* memory, Addresses* addresses,
             SegmentTable* segments, const CallClock* clock, Grew grew)
      : options_(options),
        memory_(*memory),
        open_(memory->open()),
        addresses_(*addresses),
        segments_(*segments),
        clock_(*clock),
        grew_(std::move(grew)),
        ranges_(1) {}

  // ---- Numbers.
  // Whether New() has a number without the scheduler's lock.
  bool HasUnused() const { return !unused_.empty(); }
  // A range that does not live yet.
  uint32_t New(const Request& request);
  // The numbers may be used again.
  void Recycle(uint32_t number) { unused_.push_back(number); }
  void Recycle(std::vector<uint32_t>* numbers);
  Range& operator[](uint32_t number) { return ranges_[number]; }
  const Range& operator[](uint32_t number) const { return ranges_[number]; }
  // One more than the largest number.
  uint32_t size() const { return static_cast<uint32_t>(ranges_.size()); }
  // Whose address that is; Addresses::kNoOwner: no range's.
  uint32_t At(CUdeviceptr address) const { return addresses_.At(address); }

  // ---- Lives.
  // It lives from now on. REQUIRES: it is a segment, or has a place.
  void Begin(uint32_t number);
  // It does not live from now on. Its addresses have no owner, but a segment's keep theirs.
  void End(uint32_t number);
  // The bytes of pages in which ranges live.
  core::Bytes LiveBytes() const;
  // Of the range, in pages that are away.
  core::Bytes AwayOf(uint32_t number) const;

  // ---- Holders.
  // One more submission, or a pin, holds it.
  void Hold(uint32_t number);
  // The last holder is gone: the scheduler learns of its put, or of its free.
  void EndHold(uint32_t number);
  // It does not move any more, nor do the pages of a segment.
  void Pin(uint32_t number);

  const Stats& stats() const { return stats_; }

 private:
  const EngineOptions& options_;
  JobMemory& memory_;
  OpenRanges& open_;
  Addresses& addresses_;
  SegmentTable& segments_;
  const CallClock& clock_;
  const Grew grew_;
  std::deque<Range> ranges_;  // by number; 0: none
  std::vector<uint32_t> unused_;
  Stats stats_;
};

}  // namespace ravenstore::elastic
