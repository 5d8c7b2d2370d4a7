// What waits for a client's streams: puts that are not stream-complete yet and frees whose ticket
// is not reached.
//
// Owns: one queue for each of the client's ticket words, of which only the head is looked at.
// Threads: the planner loop.
#pragma once

#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "core/types.h"
#include "proto/layout.h"

namespace ravenstore::daemon {

// True once the segment's word reached the ticket. A ticket whose index is out of range (a stranger
// wrote it) is never reached.
bool Reached(const proto::Segment& segment, proto::WordValue ticket);

class TicketQueues {
 public:
  struct Waiting {
    uint64_t value = 0;
    core::TensorId tensor{};
    // The lease word of the put that waits; 0 for a free.
    uint64_t idle_word = 0;
  };

  // Daemon memory of a wait, in bytes.
  static constexpr uint64_t kMemory = sizeof(Waiting);

  void Push(proto::WordValue ticket, core::TensorId tensor, uint64_t idle_word);
  bool empty() const { return active_.empty(); }
  size_t size() const { return size_; }

  // Calls reached(const Waiting&) for those whose ticket is reached, at most `most` of them, and
  // forgets these.
  template <typename Callback>
  void Poll(const proto::Segment& segment, size_t most, Callback reached) {
    for (size_t i = 0; i < active_.size() && most > 0;) {
      const uint16_t index = active_[i];
      auto& queue = queues_[index];
      const uint64_t now = segment.tickets[index].load(std::memory_order_acquire);
      for (; most > 0 && !queue.empty() && queue.top().value <= now; --most) {
        const Waiting waiting = queue.top();
        queue.pop();
        --size_;
        reached(waiting);
      }
      if (queue.empty()) {
        queue.Shrink();
        active_[i] = active_.back();
        active_.pop_back();
      } else {
        ++i;
      }
    }
  }

 private:
  struct Later {
    bool operator()(const Waiting& a, const Waiting& b) const { return a.value > b.value; }
  };
  // By ticket word, grown as needed; the soonest on top. Tickets do not come in order: the log of
  // puts may be read before a request that was sent earlier, or long after.
  struct Queue : std::priority_queue<Waiting, std::vector<Waiting>, Later> {
    // Once empty, what few need is kept.
    void Shrink() {
      constexpr size_t kKept = 64;
      if (c.capacity() > kKept) c = {};
    }
  };
  std::vector<Queue> queues_;
  std::vector<uint16_t> active_;  // words whose queue is not empty
  size_t size_ = 0;
};

}  // namespace ravenstore::daemon
