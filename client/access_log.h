// The client's end of the access log: which tensors its threads got and put.
//
// Threads: any. As long as no more threads than lanes use the store, each has a lane of its own and
// shares no cache line that another writes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "ipc/ring.h"
#include "proto/layout.h"

namespace ravenstore::client {

// A small number that no other living thread of this process has (while fewer than 64 use the
// store): lowest first, so that the first kLogLanes threads get lanes of their own.
uint32_t ThreadIndex();

class AccessLog {
 public:
  explicit AccessLog(proto::Segment* segment);

  // Never blocks for longer than another thread's append; a full lane drops the entry.
  void Append(uint32_t slot, proto::AccessOp op) {
    Lane& lane = lanes_[ThreadIndex() % proto::kLogLanes];
    if (lane.busy.exchange(true, std::memory_order_acquire)) [[unlikely]]
      WaitForLane(lane);
    if (!lane.used) [[unlikely]]
      Announce(lane);
    lane.producer.Append({slot, op});
    lane.busy.store(false, std::memory_order_release);
  }

 private:
  // Process-local, and written only by the threads that use the lane.
  struct alignas(128) Lane {
    std::atomic<bool> busy{false};
    bool used = false;  // guarded by busy
    ipc::LogProducer producer{nullptr};
  };

  // Returns once it has the lane that another thread is writing.
  static void WaitForLane(Lane& lane);
  // Makes the daemon read this lane from now on.
  void Announce(Lane& lane);

  proto::Segment* segment_;
  std::array<Lane, proto::kLogLanes> lanes_;
};

}  // namespace ravenstore::client
