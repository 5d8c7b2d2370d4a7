#include "daemon/copy_pieces.h"

#include <algorithm>
#include <iterator>

#include "core/check.h"

namespace ravenstore::daemon {

using core::Bytes;

std::optional<CopyPieces::Piece> CopyPieces::Allocate(Bytes bytes, Bytes unit) {
  Bytes missing = bytes.RoundUp(granularity_);
  RAVEN_CHECK(missing > Bytes{});
  if (missing > free_) return std::nullopt;
  Piece piece;
  while (missing > Bytes{}) {
    // The smallest that is large enough, else the largest.
    auto best = by_size_.lower_bound({missing, Bytes{}});
    if (best == by_size_.end()) best = std::prev(best);
    const auto fits = [&](Bytes room) { return missing <= room ? missing : room.RoundDown(unit); };
    const Bytes taken = fits(best->first);
    if (taken == Bytes{}) {
      Free(piece);
      return std::nullopt;
    }
    // Else the bytes on each side, once free, have fewer multiples of the unit than all of them.
    const Bytes skipped = best->second.RoundUp(unit) - best->second;
    const bool aligned = fits(Minus(best->first, skipped)) == taken;
    const auto hole = holes_.find(best->second);
    piece.push_back(Take(hole, {best->second + (aligned ? skipped : Bytes{}), taken}));
    missing -= taken;
  }
  return piece;
}

CopyPieces::Part CopyPieces::Take(Holes::iterator hole, const Part& part) {
  const Bytes begin = hole->first;
  const Bytes end = begin + hole->second;
  const Bytes part_end = part.offset + part.bytes;
  Erase(hole);
  if (begin < part.offset) Insert({begin, part.offset - begin});
  if (part_end < end) Insert({part_end, end - part_end});
  return part;
}

CopyPieces::Piece CopyPieces::AllocateAll(const Part& within) {
  const Bytes end = within.offset + within.bytes;
  Piece taken;
  auto next = holes_.upper_bound(within.offset);
  if (next != holes_.begin()) --next;
  while (next != holes_.end() && next->first < end) {
    const Part hole{next->first, next->second};
    const Bytes from = std::max(hole.offset, within.offset);
    const Bytes to = std::min(hole.offset + hole.bytes, end);
    const auto after = std::next(next);
    if (from < to) {
      taken.push_back(Take(next, {from, to - from}));
    }
    next = after;
  }
  return taken;
}

void CopyPieces::Free(const Piece& piece) {
  for (Part part : piece) {
    auto next = holes_.lower_bound(part.offset);
    RAVEN_CHECK(next == holes_.end() || part.offset + part.bytes <= next->first);
    if (next != holes_.end() && part.offset + part.bytes == next->first) {
      part.bytes += next->second;
      Erase(next);
    }
    next = holes_.lower_bound(part.offset);
    if (next != holes_.begin()) {
      const auto before = std::prev(next);
      RAVEN_CHECK(before->first + before->second <= part.offset);
      if (before->first + before->second == part.offset) {
        part = {before->first, before->second + part.bytes};
        Erase(before);
      }
    }
    Insert(part);
  }
}

void CopyPieces::Cut(Piece* piece, const Part& part) {
  const auto found = std::find_if(piece->begin(), piece->end(), [&part](const Part& of) {
    return of.offset <= part.offset && part.offset + part.bytes <= of.offset + of.bytes;
  });
  RAVEN_CHECK(found != piece->end());
  const Part before{found->offset, part.offset - found->offset};
  const Part after{part.offset + part.bytes,
                   found->offset + found->bytes - (part.offset + part.bytes)};
  const auto next = piece->erase(found);
  const auto last = after.bytes > Bytes{} ? piece->insert(next, after) : next;
  if (before.bytes > Bytes{}) piece->insert(last, before);
}

void CopyPieces::Insert(const Part& part) {
  holes_.emplace(part.offset, part.bytes);
  by_size_.insert({part.bytes, part.offset});
  free_ += part.bytes;
}

void CopyPieces::Erase(Holes::iterator hole) {
  by_size_.erase({hole->second, hole->first});
  free_ -= hole->second;
  holes_.erase(hole);
}

}  // namespace ravenstore::daemon
