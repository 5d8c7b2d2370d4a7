// The free memory of a pool for copies, of which each copy gets one piece in one or more parts.
//
// A copy fits wherever that many bytes are free: where no hole is large enough, its piece has
// several parts. So no bytes are lost between pieces.
//
// Source: best fit with immediate coalescing (Wilson et al., "Dynamic Storage Allocation: A Survey
// and Critical Review", 1995).
//
// Owns: the holes. Units: bytes; sizes are rounded up to the granularity. Threads: one at a time.
// Cost: O(parts x log holes) a call.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/types.h"

namespace ravenstore::daemon {

class CopyPieces {
 public:
  struct Part {
    core::Bytes offset;
    core::Bytes bytes;

    bool operator==(const Part&) const = default;
  };
  using Piece = std::vector<Part>;  // in the order of the copy's bytes

  // `granularity`: a power of two; each part begins and ends at a multiple of it.
  explicit CopyPieces(core::Bytes granularity = core::kExtentAlignment)
      : granularity_(granularity) {}

  core::Bytes granularity() const { return granularity_; }
  core::Bytes free() const { return free_; }
  // nullopt: fewer bytes are free. REQUIRES: bytes > 0.
  std::optional<Piece> Allocate(core::Bytes bytes) { return Allocate(bytes, granularity_); }
  // All parts but the last have a multiple of `unit` bytes; nullopt also if there are no such
  // parts. They begin at multiples of it where that makes none shorter. REQUIRES: `unit` is a power
  // of two, and not less than the granularity.
  std::optional<Piece> Allocate(core::Bytes bytes, core::Bytes unit);
  // Also of memory that has come to the pool. REQUIRES: no part is free already.
  void Free(const Piece& piece);
  // Takes all that is free in that part of the memory.
  Piece AllocateAll(const Part& within);
  // The piece is without that part from now on. REQUIRES: one of its parts has it.
  static void Cut(Piece* piece, const Part& part);

 private:
  using Holes = std::map<core::Bytes, core::Bytes>;  // bytes by offset

  // REQUIRES: the hole has that part.
  Part Take(Holes::iterator hole, const Part& part);
  void Insert(const Part& part);
  void Erase(Holes::iterator hole);

  const core::Bytes granularity_;
  Holes holes_;
  std::set<std::pair<core::Bytes, core::Bytes>> by_size_;  // {bytes, offset}
  core::Bytes free_;
};

}  // namespace ravenstore::daemon
