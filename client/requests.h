// The client's end of the request ring, and the rows of its lease table.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "client/phase.h"
#include "core/result.h"
#include "core/types.h"
#include "ipc/ring.h"
#include "ipc/unique_fd.h"
#include "proto/layout.h"

namespace ravenstore::client {

// Owns: the bookkeeping of which rows are free, and the doorbell.
// Threads: any; the ring has one producer, so that a process-local lock is held for a push (never
//   while waiting).
class RequestQueue {
 public:
  RequestQueue(proto::Segment* segment, ipc::UniqueFd doorbell, const PhaseWord* phase);

  // Takes a free row for each of `creates`, fills in its `slot`, marks the row kRequested and sends
  // all of them; `*sent` are on their way to the daemon, also when an error is returned.
  // Errors: kLimit (no row is free), kTimedOut (the ring stayed full), kLost.
  core::Status Create(std::span<proto::Request> creates, core::Tick deadline, size_t* sent);

  // Sends requests of rows that the caller moved to kFetching or kFreeing. The rows of kFree
  // requests are taken back once the daemon is done with them; those that an error left unsent go
  // with the next call that finds room.
  // Errors: kTimedOut (the ring stayed full), kLost.
  core::Status Send(std::span<const proto::Request> requests, core::Tick deadline, size_t* sent);

  // The create in this row failed and its words were read: the row is free.
  void Recycle(uint32_t slot);

  // The daemon owes this row an answer that no thread waits for any more: once it came, the row's
  // tensor is freed by the next Create or Send.
  void Orphan(uint32_t slot);

  // Rows at or above this were never used.
  uint32_t rows() const { return fresh_.load(std::memory_order_acquire); }
  int doorbell() const { return doorbell_.get(); }
  // Rings it if the daemon sleeps: there is news for it in the segment.
  void Wake();

  void LockForFork() { mutex_.lock(); }
  void UnlockAfterFork() { mutex_.unlock(); }
  void DropInChild() { doorbell_.reset(); }

 private:
  // Both REQUIRE mutex_. TakeRow gives kSlotCapacity when there is none.
  uint32_t TakeRow();
  void AdoptOrphans();
  // Sends what an earlier Send could not. REQUIRES mutex_.
  void PushUnsent();
  // Rings when the daemon sleeps, and waits a little for room. REQUIRES: mutex_ is not held.
  core::Status AwaitRoom(core::Tick deadline);

  proto::Segment* const segment_;
  ipc::UniqueFd doorbell_;
  const PhaseWord* const phase_;
  std::atomic<uint32_t> fresh_{0};  // written under mutex_

  std::mutex mutex_;
  ipc::RequestProducer producer_;  // guarded by mutex_
  std::deque<uint32_t> recycled_;  // the daemon has freed them or is about to; guarded by mutex_
  std::vector<uint32_t> orphans_;  // guarded by mutex_
  std::vector<proto::Request> unsent_;  // frees that found the ring full; guarded by mutex_
};

}  // namespace ravenstore::client
