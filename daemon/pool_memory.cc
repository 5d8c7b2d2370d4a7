#include "daemon/pool_memory.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::Tick;

namespace {

// Calls `visit` with each chunk that has some of the piece, and the part there.
template <typename Map, typename Visit>
void ForEachChunk(Map& chunks, const PoolMemory::Piece& piece, Visit visit) {
  for (PoolMemory::Part part : piece) {
    auto chunk = std::prev(chunks.upper_bound(part.offset));
    for (; part.bytes > Bytes{}; ++chunk) {
      const Bytes here = std::min(part.bytes, chunk->first + chunk->second.bytes - part.offset);
      visit(chunk->second, PoolMemory::Part{part.offset, here});
      part.offset += here;
      part.bytes -= here;
    }
  }
}

}  // namespace

PoolMemory::PoolMemory(const Options& options)
    : options_(options), pieces_(options.granularity), limit_(options.range) {
  if (options_.step > Bytes{}) return;
  chunks_[Bytes{}] = {.bytes = options_.range};
  pieces_.Free({{Bytes{}, options_.range}});
  made_ = open_ = options_.range;
}

// ---- Copies.

std::optional<PoolMemory::Piece> PoolMemory::Allocate(Bytes bytes, Bytes unit) {
  auto piece = pieces_.Allocate(bytes, unit);
  if (!piece) return piece;
  ++version_;
  ForEachChunk(chunks_, *piece, [](Chunk& chunk, const Part& part) {
    chunk.used += part.bytes;
    chunk.was_idle = false;
  });
  return piece;
}

void PoolMemory::Free(const Piece& piece) {
  ++version_;
  ForEachChunk(chunks_, piece, [this](Chunk& chunk, const Part& part) {
    RAVEN_CHECK(chunk.used >= part.bytes);
    chunk.used -= part.bytes;
    if (chunk.closed) {
      chunk.free.push_back(part);
    } else {
      pieces_.Free({part});
    }
  });
}

void PoolMemory::Hold(const Piece& piece) {
  ForEachChunk(chunks_, piece, [](Chunk& chunk, const Part&) { ++chunk.holds; });
}

void PoolMemory::Unhold(const Piece& piece) {
  ForEachChunk(chunks_, piece, [](Chunk& chunk, const Part&) {
    RAVEN_CHECK(chunk.holds > 0);
    --chunk.holds;
  });
}

Bytes PoolMemory::used() const {
  Bytes used;
  for (const auto& [offset, chunk] : chunks_) used += chunk.used;
  return used;
}

bool PoolMemory::IsClosed(const Piece& piece) const {
  bool closed = false;
  ForEachChunk(chunks_, piece, [&](const Chunk& chunk, const Part&) { closed |= chunk.closed; });
  return closed;
}

bool PoolMemory::IsLost(const Piece& piece) const {
  bool lost = false;
  ForEachChunk(chunks_, piece,
               [&](const Chunk& chunk, const Part&) { lost |= chunk.taken == Taken::kLost; });
  return lost;
}

// ---- Chunks.

Bytes PoolMemory::Growth() const {
  if (options_.step == Bytes{} || failed_ || now_ < grows_at_) return {};
  return Minus(std::min(Most(), options_.range), committed()).RoundDown(options_.unit);
}

void PoolMemory::SetLimit(Bytes most) {
  ++version_;
  limit_ = most;
  Balance();
}

void PoolMemory::SetTarget(Bytes most) {
  ++version_;
  target_ = most;
  Balance();
}

std::optional<PoolMemory::Part> PoolMemory::NextGrowth(Bytes waited) {
  if (IsGrowing() || free() >= waited + options_.ahead) return std::nullopt;
  const Bytes bytes = std::min(options_.step, Growth());
  if (bytes == Bytes{}) return std::nullopt;
  // The lowest offsets without memory.
  Bytes offset;
  for (const auto& [at, chunk] : chunks_) {
    if (at >= offset + options_.unit) break;
    offset = at + chunk.bytes;
  }
  const auto next = chunks_.lower_bound(offset);
  const Bytes end = next == chunks_.end() ? options_.range : next->first;
  if (offset >= end) return std::nullopt;
  coming_ = {offset, std::min(bytes, end - offset)};
  coming_taken_ = Taken::kNot;
  return coming_;
}

void PoolMemory::Grown() {
  ++version_;
  const Part part = std::exchange(coming_, {});
  const auto chunk = chunks_.emplace(part.offset, Chunk{.bytes = part.bytes}).first;
  made_ += part.bytes;
  open_ += part.bytes;
  pieces_.Free({part});
  if (coming_taken_ != Taken::kNot || failed_) Take(part.offset, coming_taken_);
  if (failed_ && !chunk->second.closed) Close(chunk);
  if (idle_look_ == core::kNever && options_.idle > core::Duration{0})
    idle_look_ = now_ + options_.idle;
  Balance();
}

void PoolMemory::GrowFailed(Tick now) {
  ++version_;
  coming_ = {};
  grows_at_ = now + options_.pause;
}

void PoolMemory::Close(Chunks::iterator chunk) {
  ++version_;
  chunk->second.closed = true;
  chunk->second.free = pieces_.AllocateAll({chunk->first, chunk->second.bytes});
  open_ -= chunk->second.bytes;
}

void PoolMemory::Open(Chunks::iterator chunk) {
  ++version_;
  chunk->second.closed = false;
  pieces_.Free(std::exchange(chunk->second.free, {}));
  open_ += chunk->second.bytes;
}

void PoolMemory::Take(Bytes offset, Taken how) {
  if (IsGrowing() && offset == coming_.offset) coming_taken_ = std::max(coming_taken_, how);
  const auto chunk = chunks_.find(offset);
  if (chunk == chunks_.end() || chunk->second.leaves) return;
  chunk->second.taken = std::max(chunk->second.taken, how);
  if (!chunk->second.closed) Close(chunk);
}

void PoolMemory::Recall(Bytes offset) {
  Take(offset, Taken::kRecalled);
}

void PoolMemory::Lose(Bytes offset) {
  Take(offset, Taken::kLost);
}

void PoolMemory::Keep(Bytes offset) {
  if (IsGrowing() && offset == coming_.offset && coming_taken_ == Taken::kRecalled)
    coming_taken_ = Taken::kNot;
  const auto chunk = chunks_.find(offset);
  if (chunk == chunks_.end() || chunk->second.taken != Taken::kRecalled || chunk->second.leaves)
    return;
  chunk->second.taken = Taken::kNot;
  Balance();
}

void PoolMemory::Fail() {
  failed_ = true;
  for (auto chunk = chunks_.begin(); chunk != chunks_.end(); ++chunk) {
    chunk->second.taken = Taken::kLost;
    if (!chunk->second.closed) Close(chunk);
  }
}

// Opens what fits again, and closes the chunks with the smallest part in use where more is there
// than may be.
void PoolMemory::Balance() {
  if (options_.step == Bytes{}) return;
  const auto share = [](const Chunk& chunk) {
    return static_cast<double>(chunk.used.count()) / static_cast<double>(chunk.bytes.count());
  };
  while (open_ > limit_) {
    auto emptiest = chunks_.end();
    for (auto chunk = chunks_.begin(); chunk != chunks_.end(); ++chunk) {
      if (chunk->second.closed) continue;
      if (emptiest == chunks_.end() || share(chunk->second) < share(emptiest->second))
        emptiest = chunk;
    }
    Close(emptiest);
  }
  for (auto chunk = chunks_.begin(); chunk != chunks_.end(); ++chunk) {
    const Chunk& of = chunk->second;
    const bool may_open = of.closed && !of.leaves && of.taken == Taken::kNot && !failed_;
    if (may_open && open_ + of.bytes <= Most()) Open(chunk);
  }
}

bool PoolMemory::HasClosed() const {
  return std::any_of(chunks_.begin(), chunks_.end(),
                     [](const auto& of) { return of.second.closed && !of.second.leaves; });
}

// A pool of fixed size keeps its memory, also when it has failed.
std::optional<PoolMemory::Part> PoolMemory::NextRelease() {
  if (options_.step == Bytes{}) return std::nullopt;
  for (auto chunk = chunks_.begin(); chunk != chunks_.end() && open_ > target_; ++chunk) {
    if (!chunk->second.closed && chunk->second.used == Bytes{}) Close(chunk);
  }
  for (auto& [offset, chunk] : chunks_) {
    if (!chunk.closed || chunk.leaves || chunk.used > Bytes{} || chunk.holds > 0) continue;
    chunk.leaves = true;
    return Part{offset, chunk.bytes};
  }
  return std::nullopt;
}

void PoolMemory::Released(Bytes offset) {
  ++version_;
  const auto chunk = chunks_.extract(offset);
  RAVEN_CHECK(chunk.mapped().leaves);
  made_ -= chunk.mapped().bytes;
}

// Its offsets are not used again.
void PoolMemory::ReleaseFailed(Bytes offset) {
  Chunk& chunk = chunks_.at(offset);
  RAVEN_CHECK(chunk.leaves);
  made_ -= chunk.bytes;
  stuck_ += chunk.bytes;
}

void PoolMemory::Advance(Tick now) {
  if (now_ < grows_at_ && now >= grows_at_) ++version_;
  now_ = now;
  if (now >= idle_look_) LookForIdle(now);
}

Tick PoolMemory::NextWake() const {
  return now_ < grows_at_ ? std::min(grows_at_, idle_look_) : idle_look_;
}

void PoolMemory::LookForIdle(Tick now) {
  for (auto chunk = chunks_.begin(); chunk != chunks_.end(); ++chunk) {
    Chunk& of = chunk->second;
    if (of.closed || of.used > Bytes{}) continue;
    if (of.was_idle) {
      Close(chunk);
      of.taken = Taken::kRecalled;
    } else {
      of.was_idle = true;
    }
  }
  idle_look_ = open_ > Bytes{} ? now + options_.idle : core::kNever;
}

}  // namespace ravenstore::daemon
