// The single-producer, single-consumer rings of a control segment.
//
// Each end keeps its own position in private memory and only publishes it: what stands in the
// segment may be anything by the time it is read, since the other side can write all of it. A
// consumer copies an entry out once and checks the copy; a producer that is shown nonsense believes
// that the ring is full. Nothing here blocks, allocates or makes a system call. A client
// can keep a ring from ever being empty, so the daemon bounds what it takes in a round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/layout.h"

namespace ravenstore::ipc {

enum class Take {
  kEmpty,
  kEntry,
  // The producer's position or the entry cannot be true. The consumer stays at kCorrupt: there is
  // no telling where the next good entry would be.
  kCorrupt,
};

// The client's end of the request ring.
// Threads: one at a time (the client holds a mutex of its own around it).
class RequestProducer {
 public:
  // `ring` is fresh, and outlives this.
  explicit RequestProducer(proto::RequestRing* ring) : ring_(ring) {}

  // Appends `request`, whose `sequence` is filled in here. False when the ring is full.
  bool Push(const proto::Request& request) { return PushBatch({&request, 1}) == 1; }
  // Appends the first requests that fit and publishes them together; returns how many.
  size_t PushBatch(std::span<const proto::Request> requests);
  // Entries that Push would take now.
  size_t Room();

 private:
  proto::RequestRing* ring_;
  uint64_t head_ = 0;
  uint64_t tail_seen_ = 0;
};

// The daemon's end of the request ring.
// Threads: one at a time; HasWork from that thread too.
class RequestConsumer {
 public:
  explicit RequestConsumer(proto::RequestRing* ring) : ring_(ring) {}

  // Takes the next entry. Only its `sequence` and the reserved fields are checked.
  Take Pop(proto::Request* request);
  // The slot of the entry `ahead` of the next one, for prefetching its row. Unchecked, and stale
  // when that many entries are not there.
  uint32_t SlotAhead(uint64_t ahead) const {
    return __atomic_load_n(&ring_->entries[(tail_ + ahead) % proto::kRequestRingEntries].slot,
                           __ATOMIC_RELAXED);
  }
  // True when Pop would not say kEmpty. For GoToSleep (ipc/wake.h).
  bool HasWork() const;

 private:
  proto::RequestRing* ring_;
  uint64_t tail_ = 0;
  uint64_t head_seen_ = 0;
  bool corrupt_ = false;
};

// A client thread's end of one lane of the access log.
// Threads: one at a time.
class LogProducer {
 public:
  explicit LogProducer(proto::LogLane* lane) : lane_(lane) {}

  // Appends `access`; when the lane is full it is dropped and counted. The cost is two stores.
  void Append(proto::Access access) {
    if (head_ - tail_seen_ >= proto::kLogLaneEntries && !Refresh()) {
      lane_->dropped.store(++dropped_, std::memory_order_relaxed);
      return;
    }
    lane_->entries[head_ % proto::kLogLaneEntries].store(proto::Pack(access),
                                                         std::memory_order_relaxed);
    lane_->head.store(++head_, std::memory_order_release);
  }

 private:
  bool Refresh();

  proto::LogLane* lane_;
  uint64_t head_ = 0;
  uint64_t tail_seen_ = 0;
  uint64_t dropped_ = 0;
};

// The daemon's end of one lane.
// Threads: one at a time.
class LogConsumer {
 public:
  explicit LogConsumer(proto::LogLane* lane) : lane_(lane) {}

  // Takes the next entry: its slot is within the lease table and its op one of AccessOp's.
  Take Pop(proto::Access* access);
  bool HasWork() const;
  // What the client counts as dropped. A stranger's word: for statistics only.
  uint64_t dropped() const { return lane_->dropped.load(std::memory_order_relaxed); }

 private:
  proto::LogLane* lane_;
  uint64_t tail_ = 0;
  uint64_t head_seen_ = 0;
  bool corrupt_ = false;
};

// The daemon's end of the map ring.
// Threads: one at a time.
class MapProducer {
 public:
  // `ring` is fresh, and outlives this.
  explicit MapProducer(proto::MapRing* ring) : ring_(ring) {}

  // Entries that Push would take now.
  size_t Room() const { return proto::kMapRingEntries - (head_ - acknowledged_); }
  // Appends `instruction`, whose `sequence` is filled in here. REQUIRES: Room() > 0.
  void Push(proto::MapInstruction instruction);
  // Wakes the mapper. A system call: after the last Push of several.
  void Wake();
  // Whether NextResult has something to say.
  bool HasWork() const {
    return corrupt_ || ring_->acknowledged.load(std::memory_order_acquire) != acknowledged_;
  }
  // The result of the next entry, in the order of Push; kEmpty while the client has not executed
  // it. A stranger's word.
  Take NextResult(uint32_t* result);

 private:
  proto::MapRing* ring_;
  uint64_t head_ = 0;
  uint64_t acknowledged_ = 0;
  bool corrupt_ = false;
};

// The client's end of the map ring.
// Threads: one at a time; Wake any.
class MapConsumer {
 public:
  explicit MapConsumer(proto::MapRing* ring) : ring_(ring) {}

  // The next entry, which stays the next until Acknowledge().
  Take Next(proto::MapInstruction* instruction);
  // It was executed. `result`: 0, or an ErrorCode.
  void Acknowledge(uint32_t result);
  // For Sleep(): read it before looking for whatever Wake() announces.
  uint64_t wake() const { return ring_->wake.load(std::memory_order_seq_cst); }
  // Until Wake() was called by either side since wake() was `seen`. May return earlier.
  void Sleep(uint64_t seen);
  void Wake();

 private:
  proto::MapRing* ring_;
  uint64_t next_ = 0;
  uint64_t head_seen_ = 0;
};

}  // namespace ravenstore::ipc
