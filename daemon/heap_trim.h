// Returns memory to the kernel that a thread's clients left behind, while that thread goes on.
//
// malloc_trim does this under the lock of an arena, for as long as the kernel takes for all of it
// (0.2 to 0.4 ms a MiB), and the arena's thread waits meanwhile for its next allocation. Here the
// thread takes the free memory of its arena, in large pieces, as an allocation of its own. Another
// thread returns their pages to the kernel, under no lock. Then the thread frees the pieces again.
// Each of its steps is short. Free pieces smaller than the smallest one taken, 16 KiB, stay.
//
// Threads: Release on any, the rest on the one whose memory it is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/types.h"
#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

// When it is worth looking: after something was freed, and not all the time.
class HeapTrimTimer {
 public:
  static constexpr core::Duration kEvery{std::chrono::seconds(10)};

  // Something large may have been freed.
  void Freed(core::Tick now) {
    if (!wanted_) due_ = std::max(now, next_);
    wanted_ = true;
  }
  // When to begin; kNever: there is nothing to do.
  core::Tick due() const { return wanted_ && !running_ ? due_ : core::kNever; }
  // REQUIRES: due() is over.
  void Begin(core::Tick now) {
    next_ = now + kEvery;
    wanted_ = false;
    running_ = true;
  }
  void End() { running_ = false; }

 private:
  core::Tick next_{};
  core::Tick due_{};
  bool wanted_ = false;
  bool running_ = false;
};

class HeapTrim {
 public:
  // A step takes about so long at most.
  static constexpr core::Duration kStep{std::chrono::microseconds(300)};
  static constexpr core::Bytes kStepBytes = core::MiB(4);

  struct Piece {
    char* at;
    size_t bytes;
  };

  HeapTrim() = default;
  HeapTrim(const HeapTrim&) = delete;
  HeapTrim& operator=(const HeapTrim&) = delete;
  ~HeapTrim();

  // Takes the next pieces that are free and still have memory. Empty: there are none.
  std::vector<Piece> Take();
  // Returns the memory behind the pieces to the kernel.
  static void Release(const std::vector<Piece>& pieces);
  // Frees some of what was taken. True once nothing is left; then Take may begin again.
  // REQUIRES: what was taken is released.
  bool PutBack();

 private:
  bool HasMemory(const Piece& piece);

  ipc::UniqueFd pagemap_;
  std::vector<void*> taken_;
  size_t size_ = 0;    // index of the size that is looked for
  size_t misses_ = 0;  // pieces of it that had no memory
};

}  // namespace ravenstore::daemon
