// The caller's streams, as one session uses them: tickets for the work enqueued on them, and waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

#include "client/devices.h"
#include "client/lease.h"
#include "client/phase.h"
#include "core/result.h"
#include "core/types.h"
#include "device/device.h"
#include "proto/layout.h"

namespace ravenstore::client {

// One stream, or every thread's own by a handle that they share. Tickets are packed
// proto::WordValues; 0 is "nothing to wait for". Threads: any; two that use one stream at the same
// time are put in order here, as the streams
//   themselves do it.
class ClientStream {
 public:
  // `index` is the stream's ticket word; a synchronous stream has none.
  ClientStream(std::unique_ptr<device::Stream> stream, uint16_t index, proto::Segment* segment,
               const PhaseWord* phase);

  bool synchronous() const { return synchronous_; }

  // The word of its tickets, where its later work is done after what each of them stands for.
  std::optional<uint16_t> OrderedWord() const {
    return synchronous_ || !ordered_ ? std::nullopt : std::optional(index_);
  }

  // kCapturing while the stream is being captured.
  core::Status CheckNotCapturing();

  // True while the work that `ticket` stands for is not done.
  bool Open(uint64_t ticket) const;
  // True if the ticket is open and this stream's own order does not cover it already. A handle that
  // means another stream in every thread has no order: it is unknown whether the ticket is the
  // caller's.
  bool MustOrder(uint64_t ticket) const {
    return Open(ticket) && (!ordered_ || proto::UnpackWordValue(ticket).index != index_);
  }

  // A ticket for the work enqueued so far and for what the tickets `also` stand for. A stream that
  // is the calling thread waits only where two of them are still open.
  core::Result<uint64_t> TakeTicket(std::span<const uint64_t> also, Deadline& deadline);

  // Later work runs only after `ticket`. A stream that is the calling thread waits.
  // Errors: kTimedOut, kLost.
  core::Status WaitForTicket(uint64_t ticket, Deadline& deadline);

  // Later work runs only once the bytes of the tensor in row `slot` have arrived. A stream that is
  // the calling thread waits. Errors: kTimedOut, kLost.
  core::Status WaitForArrival(uint32_t slot, uint64_t arrival, Deadline& deadline);

  // The calling thread waits for both, whatever the stream. Errors: kTimedOut, kLost.
  core::Status Block(uint64_t ticket, uint64_t arrival, Deadline& deadline);

  core::Status Copy(void* to, const void* from, core::Bytes bytes);
  core::Status Fill(void* to, uint8_t value, core::Bytes bytes);
  core::Status Synchronize();
  // Null while the stream is captured. Errors: the device's, of AllStreams kInvalidArgument.
  core::Result<std::unique_ptr<device::StreamMark>> Mark();

  // True once a tensor that this stream waited for turned out to be lost.
  bool SawLoss();

  // Waits until `deadline` for every ticket taken so far. False when one is still open.
  bool AwaitTickets(core::Tick deadline);
  // How far its tickets are reached, and whether one is not.
  uint64_t Reached() const;
  bool HasOpen();
  // Waits until `deadline` to come further than `reached`.
  void AwaitBeyond(uint64_t reached, core::Tick deadline) const;

 private:
  struct Expected {
    uint32_t slot;
    uint64_t id;  // of the tensor in it
    uint64_t arrival;
    uint64_t losses;  // of the session until then
  };

  core::Status AwaitTicket(uint64_t ticket, Deadline& deadline) const;
  core::Status AwaitArrival(uint64_t arrival, Deadline& deadline) const;
  // REQUIRES mutex_. Notes losses and forgets what has arrived.
  void DropArrived();
  // Whether an arrival that is through may have brought no bytes.
  bool WasLost(const Expected& expected) const;

  const bool synchronous_;
  const bool ordered_;  // calls that come one after the other are done in that order
  const uint16_t index_;
  proto::Segment* const segment_;
  const PhaseWord* const phase_;

  std::mutex mutex_;
  std::unique_ptr<device::Stream> stream_;  // guarded by mutex_ unless synchronous_
  uint64_t last_value_ = 0;                 // of this stream's tickets; guarded by mutex_
  std::vector<Expected> expected_;          // arrivals waited for; guarded by mutex_
  bool saw_loss_ = false;                   // guarded by mutex_
};

// Every stream that the session has met.
// Threads: any; a thread that stays with one stream takes no lock.
class StreamTable {
 public:
  StreamTable(proto::Segment* segment, const PhaseWord* phase);

  // The stream `handle`, used with tensors of `device`.
  // Errors: kLimit (more than proto::kTicketWords streams), the device's.
  core::Result<ClientStream*> Find(device::StreamHandle handle, ClientDevice& device);
  // The one that Find gave before for any device, or null.
  std::vector<ClientStream*> Known(device::StreamHandle handle);

  // True when any stream but the calling thread was ever used.
  bool AnyAsynchronous();
  // Waits for every ticket taken. False when `deadline` came first.
  bool AwaitTickets(core::Tick deadline);
  // Rises whenever a ticket is reached.
  uint64_t Reached();
  // Waits until it is more than `reached`. False when no ticket is open, or `deadline` came first.
  bool AwaitBeyond(uint64_t reached, core::Tick deadline);

 private:
  core::Result<ClientStream*> FindSlow(device::StreamHandle handle, ClientDevice& device);

  // Distinguishes tables in the threads' caches, also after one took another's address.
  const uint64_t serial_;
  proto::Segment* const segment_;
  const PhaseWord* const phase_;

  std::shared_mutex mutex_;
  uint32_t next_index_ = 0;  // guarded by mutex_
  std::map<std::pair<device::StreamHandle, const ClientDevice*>, std::unique_ptr<ClientStream>>
      streams_;  // guarded by mutex_
};

}  // namespace ravenstore::client
