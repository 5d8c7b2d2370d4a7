#include "client/access_log.h"

#include <sched.h>

#include <bit>

namespace ravenstore::client {
namespace {

constexpr uint32_t kIndexes = 64;

// No lock: a fork while another thread holds one would leave the child without.
std::atomic<uint64_t> g_taken{0};
std::atomic<uint32_t> g_overflow{0};

class IndexHolder {
 public:
  IndexHolder() {
    uint64_t taken = g_taken.load(std::memory_order_relaxed);
    while (taken != ~uint64_t{0}) {
      const uint32_t lowest = static_cast<uint32_t>(std::countr_one(taken));
      if (g_taken.compare_exchange_weak(taken, taken | uint64_t{1} << lowest)) {
        index_ = lowest;
        return;
      }
    }
    index_ = kIndexes + g_overflow.fetch_add(1, std::memory_order_relaxed) % kIndexes;
  }
  ~IndexHolder() {
    if (index_ < kIndexes) g_taken.fetch_and(~(uint64_t{1} << index_));
  }
  uint32_t index() const { return index_; }

 private:
  uint32_t index_ = 0;
};

constexpr uint32_t kNoIndex = ~uint32_t{0};
// Without a constructor, so that the hot path reads it without asking whether it is built.
constinit thread_local uint32_t t_index = kNoIndex;

}  // namespace

uint32_t ThreadIndex() {
  if (t_index != kNoIndex) [[likely]]
    return t_index;
  thread_local IndexHolder holder;
  return t_index = holder.index();
}

AccessLog::AccessLog(proto::Segment* segment) : segment_(segment) {
  for (uint32_t i = 0; i < proto::kLogLanes; ++i) {
    lanes_[i].producer = ipc::LogProducer(&segment->log[i]);
  }
}

void AccessLog::WaitForLane(Lane& lane) {
  // The holder needs a few nanoseconds, unless it was preempted.
  constexpr int kLooksBeforeYield = 1000;
  for (int look = 1; lane.busy.load(std::memory_order_relaxed) ||
                     lane.busy.exchange(true, std::memory_order_acquire);
       ++look) {
    if (look % kLooksBeforeYield == 0) sched_yield();
  }
}

void AccessLog::Announce(Lane& lane) {
  const uint32_t lanes = static_cast<uint32_t>(&lane - lanes_.data()) + 1;
  std::atomic<uint32_t>& known = segment_->header.log_lanes;
  uint32_t seen = known.load(std::memory_order_relaxed);
  while (seen < lanes && !known.compare_exchange_weak(seen, lanes, std::memory_order_release)) {
  }
  lane.used = true;
}

}  // namespace ravenstore::client
