#include "client/streams.h"

#include <algorithm>
#include <string>

#include "client/lease.h"
#include "ipc/clock.h"

namespace ravenstore::client {
namespace {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;

// Arrivals remembered before the ones that came are forgotten.
constexpr size_t kDropArrivedAt = 64;
// Streams are waited for one at a time.
constexpr core::Duration kLookAtOthers = std::chrono::milliseconds(2);

// The stream this thread used last.
struct LastUsed {
  uint64_t table = 0;
  device::StreamHandle handle = nullptr;
  const ClientDevice* device = nullptr;
  ClientStream* stream = nullptr;
};
constinit thread_local LastUsed t_last_used;

std::atomic<uint64_t> g_next_table{1};

Status StatusOf(Waited waited, const PhaseWord& phase, const char* late) {
  if (waited == Waited::kAnswered) return core::Ok();
  if (waited == Waited::kInterrupted) return RefusalOf(phase.load(std::memory_order_acquire));
  return Error{ErrorCode::kTimedOut, std::string(late) + " before the deadline"};
}

}  // namespace

ClientStream::ClientStream(std::unique_ptr<device::Stream> stream, uint16_t index,
                           proto::Segment* segment, const PhaseWord* phase)
    : synchronous_(stream->synchronous()),
      ordered_(!synchronous_ && !stream->per_thread()),
      index_(index),
      segment_(segment),
      phase_(phase),
      stream_(std::move(stream)) {}

Status ClientStream::CheckNotCapturing() {
  if (synchronous_) return core::Ok();
  std::lock_guard lock(mutex_);
  RAVEN_ASSIGN_OR_RETURN(const bool capturing, stream_->Capturing());
  if (!capturing) return core::Ok();
  return Error{ErrorCode::kCapturing,
               "the stream is being captured into a graph, whose replays the store would not see: "
               "get and put outside the capture"};
}

bool ClientStream::Open(uint64_t ticket) const {
  const proto::WordValue wait = proto::UnpackWordValue(ticket);
  if (wait.value == 0 || wait.index >= proto::kTicketWords) return false;
  return segment_->tickets[wait.index].load(std::memory_order_acquire) < wait.value;
}

Status ClientStream::AwaitTicket(uint64_t ticket, Deadline& deadline) const {
  if (!Open(ticket)) return core::Ok();
  const proto::WordValue wait = proto::UnpackWordValue(ticket);
  return StatusOf(AwaitWord(segment_->tickets[wait.index], wait.value, deadline.at(), *phase_),
                  *phase_, "the stream that put the tensor did not finish its work on it");
}

Status ClientStream::AwaitArrival(uint64_t arrival, Deadline& deadline) const {
  const proto::WordValue wait = proto::UnpackWordValue(arrival);
  if (wait.value == 0 || wait.index >= proto::kArrivalWords) return core::Ok();
  const std::atomic<uint64_t>& word = segment_->arrivals[wait.index];
  if (word.load(std::memory_order_acquire) >= wait.value) return core::Ok();
  return StatusOf(AwaitWord(word, wait.value, deadline.at(), *phase_), *phase_,
                  "the tensor's bytes did not arrive");
}

Result<uint64_t> ClientStream::TakeTicket(std::span<const uint64_t> also, Deadline& deadline) {
  if (synchronous_) {
    uint64_t open = 0;
    for (const uint64_t ticket : also) {
      if (!Open(ticket)) continue;
      // Only one open ticket of another stream can be passed on: wait for the one found before.
      RAVEN_RETURN_IF_ERROR(AwaitTicket(open, deadline));
      open = ticket;
    }
    return open;
  }
  std::lock_guard lock(mutex_);
  for (const uint64_t ticket : also) {
    if (!MustOrder(ticket)) continue;
    const proto::WordValue wait = proto::UnpackWordValue(ticket);
    RAVEN_RETURN_IF_ERROR(stream_->Wait(&segment_->tickets[wait.index], wait.value));
  }
  RAVEN_RETURN_IF_ERROR(stream_->SignalAfter(&segment_->tickets[index_], last_value_ + 1));
  ++last_value_;
  return proto::Pack(proto::WordValue{index_, last_value_});
}

Status ClientStream::WaitForTicket(uint64_t ticket, Deadline& deadline) {
  if (!MustOrder(ticket)) return core::Ok();
  if (synchronous_) return AwaitTicket(ticket, deadline);
  const proto::WordValue wait = proto::UnpackWordValue(ticket);
  std::lock_guard lock(mutex_);
  return stream_->Wait(&segment_->tickets[wait.index], wait.value);
}

Status ClientStream::WaitForArrival(uint32_t slot, uint64_t arrival, Deadline& deadline) {
  const proto::WordValue wait = proto::UnpackWordValue(arrival);
  if (wait.value == 0) return core::Ok();
  if (wait.index >= proto::kArrivalWords) {
    return Error{ErrorCode::kCorrupt, "the daemon named an arrival word that does not exist"};
  }
  if (synchronous_) return AwaitArrival(arrival, deadline);
  std::atomic<uint64_t>& word = segment_->arrivals[wait.index];
  if (word.load(std::memory_order_acquire) >= wait.value) return core::Ok();
  const uint64_t losses = segment_->header.losses.load(std::memory_order_acquire);
  const uint64_t id = segment_->slots[slot].id.load(std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  if (expected_.size() >= kDropArrivedAt) DropArrived();
  RAVEN_RETURN_IF_ERROR(stream_->Wait(&word, wait.value));
  expected_.push_back({slot, id, arrival, losses});
  return core::Ok();
}

Status ClientStream::Block(uint64_t ticket, uint64_t arrival, Deadline& deadline) {
  RAVEN_RETURN_IF_ERROR(AwaitTicket(ticket, deadline));
  return AwaitArrival(arrival, deadline);
}

Status ClientStream::Copy(void* to, const void* from, Bytes bytes) {
  if (synchronous_) return stream_->Copy(to, from, bytes);
  std::lock_guard lock(mutex_);
  return stream_->Copy(to, from, bytes);
}

Status ClientStream::Fill(void* to, uint8_t value, Bytes bytes) {
  if (synchronous_) return stream_->Fill(to, value, bytes);
  std::lock_guard lock(mutex_);
  return stream_->Fill(to, value, bytes);
}

Status ClientStream::Synchronize() {
  if (synchronous_) return core::Ok();
  std::lock_guard lock(mutex_);
  return stream_->Synchronize();
}

Result<std::unique_ptr<device::StreamMark>> ClientStream::Mark() {
  if (synchronous_) return stream_->Mark();
  std::lock_guard lock(mutex_);
  RAVEN_ASSIGN_OR_RETURN(const bool capturing, stream_->Capturing());
  if (capturing) return std::unique_ptr<device::StreamMark>();
  return stream_->Mark();
}

void ClientStream::DropArrived() {
  std::erase_if(expected_, [this](const Expected& expected) {
    const proto::WordValue wait = proto::UnpackWordValue(expected.arrival);
    const uint64_t now = segment_->arrivals[wait.index].load(std::memory_order_acquire);
    if (now < wait.value) return false;
    saw_loss_ = saw_loss_ || WasLost(expected);
    return true;
  });
}

bool ClientStream::WasLost(const Expected& expected) const {
  // The daemon marks the tensor and counts the loss before it lets such an arrival through.
  if (segment_->header.losses.load(std::memory_order_acquire) == expected.losses) return false;
  const proto::LeaseSlot& row = segment_->slots[expected.slot];
  const auto state = proto::UnpackLease(row.word.load(std::memory_order_acquire)).state;
  if (row.id.load(std::memory_order_relaxed) != expected.id) return true;  // freed since: not known
  return state != proto::LeaseState::kInUse && state != proto::LeaseState::kIdle &&
         state != proto::LeaseState::kAway && state != proto::LeaseState::kFetching;
}

bool ClientStream::SawLoss() {
  if (synchronous_) return false;
  std::lock_guard lock(mutex_);
  DropArrived();
  return saw_loss_;
}

bool ClientStream::AwaitTickets(Tick deadline) {
  if (synchronous_) return true;
  uint64_t last = 0;
  {
    std::lock_guard lock(mutex_);
    last = last_value_;
  }
  return AwaitWord(segment_->tickets[index_], last, deadline, *phase_) != Waited::kTimedOut &&
         segment_->tickets[index_].load(std::memory_order_acquire) >= last;
}

uint64_t ClientStream::Reached() const {
  return synchronous_ ? 0 : segment_->tickets[index_].load(std::memory_order_acquire);
}

bool ClientStream::HasOpen() {
  if (synchronous_) return false;
  std::lock_guard lock(mutex_);
  return Reached() < last_value_;
}

void ClientStream::AwaitBeyond(uint64_t reached, Tick deadline) const {
  AwaitWord(segment_->tickets[index_], reached + 1, deadline, *phase_);
}

StreamTable::StreamTable(proto::Segment* segment, const PhaseWord* phase)
    : serial_(g_next_table.fetch_add(1, std::memory_order_relaxed)),
      segment_(segment),
      phase_(phase) {}

Result<ClientStream*> StreamTable::Find(device::StreamHandle handle, ClientDevice& device) {
  const LastUsed& last = t_last_used;
  if (last.table == serial_ && last.handle == handle && last.device == &device) [[likely]] {
    return last.stream;
  }
  return FindSlow(handle, device);
}

Result<ClientStream*> StreamTable::FindSlow(device::StreamHandle handle, ClientDevice& device) {
  const std::pair<device::StreamHandle, const ClientDevice*> key{handle, &device};
  ClientStream* found = nullptr;
  {
    std::shared_lock lock(mutex_);
    if (const auto stream = streams_.find(key); stream != streams_.end()) {
      found = stream->second.get();
    }
  }
  if (found == nullptr) {
    std::lock_guard lock(mutex_);
    if (const auto stream = streams_.find(key); stream != streams_.end()) {
      found = stream->second.get();
    } else {
      RAVEN_RETURN_IF_ERROR(device.Prepare());
      RAVEN_ASSIGN_OR_RETURN(auto wrapped, device.device().WrapStream(handle));
      const bool needs_word = !wrapped->synchronous();
      if (needs_word && next_index_ == proto::kTicketWords) {
        return Error{ErrorCode::kLimit, "more than " + std::to_string(proto::kTicketWords) +
                                            " streams were used with this store"};
      }
      const auto index = static_cast<uint16_t>(needs_word ? next_index_++ : 0);
      auto made = std::make_unique<ClientStream>(std::move(wrapped), index, segment_, phase_);
      found = streams_.emplace(key, std::move(made)).first->second.get();
    }
  }
  t_last_used = {serial_, handle, &device, found};
  return found;
}

std::vector<ClientStream*> StreamTable::Known(device::StreamHandle handle) {
  std::vector<ClientStream*> known;
  std::shared_lock lock(mutex_);
  for (auto stream = streams_.lower_bound({handle, nullptr});
       stream != streams_.end() && stream->first.first == handle; ++stream) {
    known.push_back(stream->second.get());
  }
  return known;
}

bool StreamTable::AnyAsynchronous() {
  std::shared_lock lock(mutex_);
  return next_index_ > 0;
}

bool StreamTable::AwaitTickets(Tick deadline) {
  std::shared_lock lock(mutex_);
  bool all = true;
  for (const auto& [key, stream] : streams_) all = stream->AwaitTickets(deadline) && all;
  return all;
}

uint64_t StreamTable::Reached() {
  std::shared_lock lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [key, stream] : streams_) sum += stream->Reached();
  return sum;
}

bool StreamTable::AwaitBeyond(uint64_t reached, Tick deadline) {
  for (;;) {
    const ClientStream* open = nullptr;
    uint64_t own = 0;
    {
      std::shared_lock lock(mutex_);
      for (const auto& [key, stream] : streams_) {
        if (!stream->HasOpen()) continue;
        open = stream.get();
        own = stream->Reached();
      }
    }
    if (Reached() != reached) return true;
    const Tick now = ipc::Now();
    if (open == nullptr || now >= deadline) return false;
    // Another stream may be the first to come further.
    open->AwaitBeyond(own, std::min(deadline, now + kLookAtOthers));
  }
}

}  // namespace ravenstore::client
