// What the planner loop knows of one attached client.
//
// Threads: the planner loop.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/events.h"
#include "core/types.h"
#include "daemon/attachment.h"
#include "daemon/leases.h"
#include "daemon/map_orders.h"
#include "daemon/tickets.h"
#include "ipc/ring.h"

namespace ravenstore::daemon {

// Words of the segment that the daemon's loop writes when a copy has arrived. A word's value only
// rises, so it may serve the next transfer as soon as this one is done.
class ArrivalWords {
 public:
  ArrivalWords();
  // nullopt while all are in use.
  std::optional<proto::WordValue> Take();
  void Release(uint16_t index) { free_.push_back(index); }
  bool any() const { return !free_.empty(); }

 private:
  std::vector<uint16_t> free_;
  uint64_t last_value_ = 0;
};

class Session {
 public:
  explicit Session(std::shared_ptr<Attachment> attachment);

  // A row of the lease table as the daemon knows it.
  struct Row {
    core::TensorId tensor = core::kNoTensor;

    // The Idle word whose ticket is reached: only from this word may the daemon move the tensor. 0:
    // none.
    uint64_t complete_word() const { return put_ & kAwaited ? 0 : put_; }
    // Whether the planner has seen the put that left the word.
    bool Knows(uint64_t idle_word) const { return (put_ & ~kAwaited) == idle_word; }
    void SetStreamComplete(uint64_t idle_word) { put_ = idle_word; }
    // Its ticket is in the queue.
    void SetAwaited(uint64_t idle_word) { put_ = idle_word | kAwaited; }
    void ForgetPut() { put_ = 0; }

    // While its create waits a row has none, whatever its client names.
    bool has_tensor() const { return tensor != core::kNoTensor && tensor != kPending; }

   private:
    // A holder, which an Idle word has none of.
    static constexpr uint64_t kAwaited = proto::Pack(proto::LeaseWord{proto::LeaseState{0}, 1, 0});

    uint64_t put_ = 0;  // the Idle word of the last put that the planner has seen
  };
  // The row's tensor while its create waits.
  static constexpr core::TensorId kPending{~uint64_t{0}};

  // Stays where it is. REQUIRES: slot < proto::kSlotCapacity. Grows the table.
  Row& RowOf(core::SlotId slot);
  // What lives in the row, without growing the table; kNoTensor, too, while its create waits.
  core::TensorId TensorAt(core::SlotId slot) const;
  // Whether a create waits for the row, or a tensor lives there.
  bool IsTaken(core::SlotId slot) const;
  // By how many bytes RowOf(slot) would grow this table and the planner's.
  uint64_t GrowthFor(core::SlotId slot) const;
  LeaseRow LeaseOf(core::SlotId slot) { return LeaseRow(&segment()->slots[core::ToInt(slot)]); }
  proto::Segment* segment() { return attachment_->segment.get(); }
  Attachment& attachment() { return *attachment_; }
  const Attachment& attachment() const { return *attachment_; }
  const std::shared_ptr<Attachment>& shared() const { return attachment_; }
  core::ClientId id() const { return attachment_->id; }
  // One more than the highest that was asked for.
  uint32_t rows() const { return rows_; }

  // Entries of the access log, some of each lane in turn; false when there are none.
  bool NextAccess(proto::Access* access);
  ipc::Take NextRequest(proto::Request* request) {
    // The rows of a batch are the client's latest writes: to fetch them one at a time from its
    // core's cache would take longer than to serve them.
    constexpr uint64_t kAhead = 8;
    const uint32_t ahead = requests_.SlotAhead(kAhead);
    if (ahead < proto::kSlotCapacity) __builtin_prefetch(&segment()->slots[ahead], 1);
    return requests_.Pop(request);
  }
  bool HasWork();
  // Requests that can still be read.
  bool HasRequests() const { return !faulty && !sealed && requests_.HasWork(); }
  // True once for every rise of the count of dropped log entries.
  bool LogWasDropped();
  uint64_t log_dropped() const { return log_dropped_; }

  // Why the last requests of these slots failed. What is not `charged` to the client's user makes
  // it keep few. Returns the bytes that were charged for what it forgot.
  uint64_t RememberFailure(core::SlotId slot, std::string message, bool charged = true);
  static uint64_t CostOf(const std::string& message) { return sizeof(Failed) + message.size(); }
  std::string Failure(core::SlotId slot) const;

  TicketQueues tickets;
  ArrivalWords arrivals;
  // The arrival words of fetches that were answered before their copies ended.
  std::unordered_map<core::SlotId, proto::WordValue> early_grants;
  MapOrders maps;
  uint32_t rescan = 0;       // next row to look at in one
  uint32_t rescan_left = 0;  // rows; it goes round
  uint32_t log_passes = 0;   // in a row that its requests have waited for its log
  bool hot = false;          // polled in every pass
  bool recent = false;       // in the list of recent clients (daemon/sessions.h)
  bool faulty = false;       // its request ring is corrupt: no longer read
  bool sealed = false;       // handed over (daemon/sealed_clients.h): no ring or log is read
  bool departed = false;     // dead or detached; stays until its copies are done
  uint64_t charged = 0;      // bytes of the daemon's memory, to its user
  core::Tick last_active{};

 private:
  uint32_t LanesUsed();

  std::shared_ptr<Attachment> attachment_;
  ipc::RequestConsumer requests_;
  std::array<std::optional<ipc::LogConsumer>, proto::kLogLanes> log_;
  std::array<bool, proto::kLogLanes> log_dead_{};
  uint32_t lane_ = 0;        // whose turn it is, modulo those in use
  uint32_t lane_taken_ = 0;  // in this turn
  uint64_t log_dropped_ = 0;
  // In chunks, made as they are needed: a client names the slots, and a table of all of them takes
  // milliseconds to make or to move.
  static constexpr uint32_t kRowsPerChunk = 1024;
  std::vector<std::unique_ptr<Row[]>> table_;
  uint32_t rows_ = 0;
  struct Failed {
    core::SlotId slot;
    std::string message;
    bool charged;
  };
  std::deque<Failed> failures_;  // the oldest first
  const Row* Find(core::SlotId slot) const;
};

}  // namespace ravenstore::daemon
