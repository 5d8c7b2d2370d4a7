// The pages of a job's segments, and the addresses that it reserved for them: which part is
// mapped at a page, how it is used, and which page moves next.
//
// All that is mapped within one reservation is used together (job_segments.h): none of it moves
// while a call uses any. A page is held, too, while it is mapped nowhere.
//
// Owns: pages and reservations, which never move; no parts. Units: bytes. Threads: one at a time
// (the engine's lock of calls). Errors: none. Cost: O(pages of a segment) a call; Next(): O(pages).
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/types.h"
#include "elastic/parts.h"
#include "elastic/point.h"
#include "elastic/range_id.h"
#include "elastic/streams.h"

namespace ravenstore::elastic {

using PageId = RangeId;  // of a segment

class SegmentTable {
 public:
  // A segment's pages, from the first to before the last; none of any other range.
  using Pages = std::pair<uint32_t, uint32_t>;
  // Addresses that the job reserved. What is mapped there is used together.
  struct Reservation {
    CUdeviceptr begin = 0;
    core::Bytes size;
    size_t segments = 0;  // that are mapped there
    uint32_t busy = 0;    // submissions that name any of them
    uint32_t moving = 0;  // pages of theirs
    bool pinned = false;
    std::vector<Point> uses;  // the last of each stream that may not have passed
    uint64_t stamp = 0;       // of the submission that named it last
  };
  struct Page {
    CUdeviceptr begin = 0;
    core::Bytes size;
    Part* part = nullptr;        // not to be looked at: it may be gone before its move has ended
    Place place = Place::kHost;  // of the part
    bool is_mapped = false;      // the part, where the page is
    bool pinned = false;
    uint32_t busy = 0;  // submissions that use it, and threads that change it
    bool moving = false;
    std::vector<Point> uses;             // the last of each stream that may not have passed
    uint64_t stamp = 0;                  // of the submission that used it last
    Reservation* reservation = nullptr;  // of a mapped one: used with the rest of it

    bool away() const { return part == nullptr || place == Place::kHost; }
    Parts::There there() const { return {part, is_mapped}; }
  };
  // Where a part of a segment is, or is to be, mapped.
  struct Mapping {
    CUdeviceptr at;
    const Part* part;
    bool is_mapped;
  };

  // `part`: the size of a page, but for a segment's last. `streams` outlive it.
  SegmentTable(core::Bytes part, Streams* streams) : part_(part), streams_(*streams) {}

  // ---- Reservations.
  void Reserve(CUdeviceptr begin, core::Bytes size);
  // That which has all these addresses; null: none has.
  Reservation* ReservationAt(CUdeviceptr begin, core::Bytes size) const;
  // Null: it is mapped nowhere.
  Reservation* ReservationOf(const Pages& pages) const;
  void Unreserve(CUdeviceptr begin) { reservations_.erase(begin); }

  // ---- Segments.
  // Of a new segment, held.
  Pages Create(core::Bytes size);
  // REQUIRES: it is mapped nowhere, and has no parts.
  void End(const Pages& pages, core::Bytes size);
  // Its parts, for that address.
  std::vector<Mapping> MappingsOf(const Pages& pages, CUdeviceptr begin) const;
  // They are mapped there, and not held any more for being mapped nowhere.
  void Mapped(const Pages& pages, CUdeviceptr begin, Reservation* reservation);
  // They are mapped nowhere. REQUIRES: they are held.
  void Unmapped(const Pages& pages);
  // None of them begins to move.
  void Hold(const Pages& pages);
  void Unhold(const Pages& pages);
  void Pin(const Pages& pages);
  bool IsMoving(const Pages& pages) const;
  core::Bytes AwayOf(const Pages& pages) const;

  // ---- Pages.
  Page& At(PageId id) { return *pages_[core::ToInt(id)]; }
  void SetPart(PageId id, const Parts::There& there);
  void BeginMoving(Page* page);
  void EndMoving(Page* page);
  // No call uses it, or what is used with it, and it is neither pinned nor moving.
  bool CanMove(Page* page);
  // The one that was used last of those that can come, with at most `room` bytes; `leaves`: the one
  // that was used least recently of those that can leave.
  std::optional<PageId> Next(bool leaves, core::Bytes room);
  size_t moving() const { return moving_; }

  // ---- Sums.
  core::Bytes live() const { return live_; }
  // Of the device what the parts take, and what waits for room there or is on its way.
  core::Bytes on_device() const { return device_ + wanted_; }
  core::Bytes parts_on_device() const { return device_; }
  core::Bytes away() const { return away_; }
  core::Bytes wanted() const { return wanted_; }
  void Want(core::Bytes bytes) { wanted_ += bytes; }
  void EndWant(core::Bytes bytes) { wanted_ -= bytes; }

 private:
  const core::Bytes part_;
  Streams& streams_;
  std::vector<std::unique_ptr<Page>> pages_;  // by number
  // Of segments that are no more, by size: each first one. They are held for good.
  std::map<core::Bytes, std::vector<uint32_t>> unused_;
  std::map<CUdeviceptr, std::unique_ptr<Reservation>> reservations_;  // by begin
  core::Bytes live_;
  core::Bytes device_;
  core::Bytes away_;
  core::Bytes wanted_;
  size_t moving_ = 0;
};

}  // namespace ravenstore::elastic
