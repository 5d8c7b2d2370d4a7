// The memory of a pool for copies, which comes and goes chunk by chunk, and the pieces that copies
// have of it.
//
// A pool of fixed size has one chunk. The host's grows by chunks at its end. Idle memory of devices
// and memory of other nodes may have to be released at any time. Such a chunk is closed: no new
// copy goes there, and it is released when it is empty. It may open again before that.
//
// It is bookkeeping only. NextGrowth() and NextRelease() name the chunks that the owner makes and
// destroys.
//
// Owns: the chunks, the free memory. Units: bytes. Threads: one at a time. Errors: none; events for
// chunks that are not there are ignored. Cost: O(chunks) for a chunk, else as of CopyPieces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "core/types.h"
#include "daemon/copy_pieces.h"

namespace ravenstore::daemon {

class PoolMemory {
 public:
  using Part = CopyPieces::Part;
  using Piece = CopyPieces::Piece;

  struct Options {
    core::Bytes range;  // of the pool's offsets
    core::Bytes granularity = core::kExtentAlignment;
    core::Bytes step{};   // of a chunk; 0: of fixed size, all memory is there from the beginning
    core::Bytes unit{};   // a chunk may be smaller than `step`, but is a multiple of this
    core::Bytes ahead{};  // that stays free, where memory is to be had
    // A chunk that stays empty for this time is released, after at most twice that. 0: never.
    core::Duration idle{0};
    core::Duration pause{0};  // after a growth that failed
  };

  explicit PoolMemory(const Options& options);

  // ---- Copies.
  // As CopyPieces. nullopt also: fewer bytes are free now.
  std::optional<Piece> Allocate(core::Bytes bytes, core::Bytes unit);
  void Free(const Piece& piece);
  // The piece is being read: its chunks stay until Unhold(), also if it is freed.
  void Hold(const Piece& piece);
  void Unhold(const Piece& piece);
  core::Bytes granularity() const { return options_.granularity; }
  core::Bytes free() const { return pieces_.free(); }
  core::Bytes used() const;
  // All memory that is there, or is being released.
  core::Bytes made() const { return made_; }
  // And that is being made, or could not be released.
  core::Bytes committed() const { return made_ + coming_.bytes + stuck_; }
  core::Bytes stuck() const { return stuck_; }
  // That may be free, with the memory that may still come.
  core::Bytes Room() const { return free() + coming_.bytes + Growth(); }
  // Rises with each change of what is free or may come.
  uint64_t version() const { return version_; }
  // Some of it is in a chunk that is closed; or that is lost.
  bool IsClosed(const Piece& piece) const;
  bool IsLost(const Piece& piece) const;

  // ---- Chunks.
  // The pool may have that much memory. Chunks beyond it are closed, the emptiest first.
  void SetLimit(core::Bytes most);
  core::Bytes limit() const { return limit_; }
  // The rest is wanted for something else: no chunk is made beyond `most`, and those that are empty
  // are released.
  void SetTarget(core::Bytes most);
  // The chunk that is to be made so that `waited` bytes and those ahead are free; it ends with
  // Grown or GrowFailed. nullopt: none.
  std::optional<Part> NextGrowth(core::Bytes waited);
  void Grown();
  void GrowFailed(core::Tick now);
  bool IsGrowing() const { return coming_.bytes > core::Bytes{}; }
  // The owner of the memory there wants it back, or lets it stay after all; or it is lost.
  void Recall(core::Bytes offset);
  void Keep(core::Bytes offset);
  void Lose(core::Bytes offset);
  // The whole pool is lost, and has no memory from now on.
  void Fail();
  bool HasClosed() const;
  // A chunk that is closed and empty: it is to be released, which ends with Released or
  // ReleaseFailed.
  std::optional<Part> NextRelease();
  void Released(core::Bytes offset);
  void ReleaseFailed(core::Bytes offset);
  // What time changes.
  void Advance(core::Tick now);
  core::Tick NextWake() const;

 private:
  enum class Taken : uint8_t { kNot, kRecalled, kLost };
  struct Chunk {
    core::Bytes bytes;
    core::Bytes used;
    uint32_t holds = 0;
    Taken taken = Taken::kNot;
    bool closed = false;
    bool leaves = false;    // it is being released
    bool was_idle = false;  // it was empty at the last look, and is since then
    Piece free{};           // of a closed one
  };
  using Chunks = std::map<core::Bytes, Chunk>;  // by offset

  // Memory that the pool may still get, without the chunk that is being made.
  core::Bytes Growth() const;
  void Close(Chunks::iterator chunk);
  void Open(Chunks::iterator chunk);
  void Take(core::Bytes offset, Taken how);
  void Balance();
  // Of all that the pool could have.
  core::Bytes Most() const { return std::min(limit_, target_); }
  void LookForIdle(core::Tick now);

  const Options options_;
  CopyPieces pieces_;  // of open chunks
  Chunks chunks_;
  Part coming_;  // of no bytes: none
  Taken coming_taken_ = Taken::kNot;
  core::Bytes limit_;
  core::Bytes target_{UINT64_MAX};
  core::Bytes made_;
  core::Bytes open_;
  core::Bytes stuck_;
  uint64_t version_ = 0;
  core::Tick grows_at_{};  // not before
  core::Tick now_{};
  core::Tick idle_look_ = core::kNever;
  bool failed_ = false;
};

}  // namespace ravenstore::daemon
