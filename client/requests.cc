#include "client/requests.h"

#include <time.h>

#include <algorithm>
#include <chrono>

#include "client/lease.h"
#include "ipc/clock.h"
#include "ipc/wake.h"

namespace ravenstore::client {
namespace {

using core::Error;
using core::ErrorCode;
using core::Status;
using core::Tick;
using proto::LeaseState;

// How many recycled rows are looked at before a fresh one is taken: the tickets of some frees may
// be far away.
constexpr size_t kRecycledLooks = 4;
// The daemon empties a full ring in some tens of microseconds.
constexpr long kRoomPollNanoseconds = 50'000;

}  // namespace

RequestQueue::RequestQueue(proto::Segment* segment, ipc::UniqueFd doorbell, const PhaseWord* phase)
    : segment_(segment),
      doorbell_(std::move(doorbell)),
      phase_(phase),
      producer_(&segment->requests) {}

void RequestQueue::Wake() {
  ipc::WakeIfAsleep(&segment_->header.daemon_asleep, doorbell_.get());
}

Status RequestQueue::AwaitRoom(Tick deadline) {
  Wake();
  const Phase phase = phase_->load(std::memory_order_acquire);
  if (phase != Phase::kAttached) return RefusalOf(phase);
  if (ipc::Now() >= deadline) {
    return Error{ErrorCode::kTimedOut, "the daemon does not take requests: it is unresponsive"};
  }
  const timespec wait{.tv_sec = 0, .tv_nsec = kRoomPollNanoseconds};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, nullptr);
  return core::Ok();
}

uint32_t RequestQueue::TakeRow() {
  const uint32_t fresh = fresh_.load(std::memory_order_relaxed);
  // Where all rows were used the last free one may stand behind any number of others.
  const size_t looks =
      fresh == proto::kSlotCapacity ? recycled_.size() : std::min(kRecycledLooks, recycled_.size());
  for (size_t look = 0; look < looks; ++look) {
    const uint32_t slot = recycled_.front();
    recycled_.pop_front();
    const uint64_t word = segment_->slots[slot].word.load(std::memory_order_acquire);
    if (proto::UnpackLease(word).state == LeaseState::kFree) return slot;
    recycled_.push_back(slot);
  }
  if (fresh == proto::kSlotCapacity) return fresh;
  fresh_.store(fresh + 1, std::memory_order_release);
  return fresh;
}

Status RequestQueue::Create(std::span<proto::Request> creates, Tick deadline, size_t* sent) {
  *sent = 0;
  std::unique_lock lock(mutex_);
  if (!unsent_.empty()) PushUnsent();
  if (!orphans_.empty()) AdoptOrphans();
  while (*sent < creates.size()) {
    // Rows are taken only for what the ring has room for: a row marked kRequested is on its way.
    const size_t room = std::min(producer_.Room(), creates.size() - *sent);
    size_t ready = 0;
    for (; ready < room; ++ready) {
      proto::Request& create = creates[*sent + ready];
      create.slot = TakeRow();
      if (create.slot == proto::kSlotCapacity) break;
      uint64_t word = segment_->slots[create.slot].word.load(std::memory_order_relaxed);
      CasLease(segment_->slots[create.slot], &word, LeaseState::kRequested, 0);
    }
    *sent += producer_.PushBatch(creates.subspan(*sent, ready));
    if (*sent == creates.size()) break;
    lock.unlock();
    if (ready < room) {
      Wake();
      return Error{ErrorCode::kLimit, "this client has " + std::to_string(proto::kSlotCapacity) +
                                          " tensors, and no more are possible"};
    }
    RAVEN_RETURN_IF_ERROR(AwaitRoom(deadline));
    lock.lock();
  }
  lock.unlock();
  Wake();
  return core::Ok();
}

Status RequestQueue::Send(std::span<const proto::Request> requests, Tick deadline, size_t* sent) {
  *sent = 0;
  std::unique_lock lock(mutex_);
  if (!unsent_.empty()) PushUnsent();
  if (!orphans_.empty()) AdoptOrphans();
  while (true) {
    const size_t before = *sent;
    *sent += producer_.PushBatch(requests.subspan(before));
    for (const proto::Request& request : requests.subspan(before, *sent - before)) {
      if (request.op == static_cast<uint32_t>(proto::RequestOp::kFree)) {
        recycled_.push_back(request.slot);
      }
    }
    if (*sent == requests.size()) break;
    lock.unlock();
    Status room = AwaitRoom(deadline);
    lock.lock();
    if (room.ok()) continue;
    for (const proto::Request& request : requests.subspan(*sent)) {
      if (request.op == static_cast<uint32_t>(proto::RequestOp::kFree)) unsent_.push_back(request);
    }
    return room;
  }
  lock.unlock();
  Wake();
  return core::Ok();
}

void RequestQueue::PushUnsent() {
  const size_t pushed = producer_.PushBatch(unsent_);
  for (size_t i = 0; i < pushed; ++i) recycled_.push_back(unsent_[i].slot);
  unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<ptrdiff_t>(pushed));
}

void RequestQueue::Recycle(uint32_t slot) {
  proto::LeaseSlot& row = segment_->slots[slot];
  uint64_t word = row.word.load(std::memory_order_acquire);
  CasLease(row, &word, LeaseState::kFree, 0);
  std::lock_guard lock(mutex_);
  recycled_.push_back(slot);
}

void RequestQueue::Orphan(uint32_t slot) {
  std::lock_guard lock(mutex_);
  orphans_.push_back(slot);
}

void RequestQueue::AdoptOrphans() {
  std::erase_if(orphans_, [this](uint32_t slot) {
    proto::LeaseSlot& row = segment_->slots[slot];
    uint64_t word = row.word.load(std::memory_order_acquire);
    const LeaseState state = proto::UnpackLease(word).state;
    if (state == LeaseState::kRequested || state == LeaseState::kFetching) return false;
    if (state == LeaseState::kFailed) {
      CasLease(row, &word, LeaseState::kFree, 0);
    } else if (state != LeaseState::kFree && state != LeaseState::kFreeing) {
      if (producer_.Room() == 0 || !CasLease(row, &word, LeaseState::kFreeing, 0)) return false;
      proto::Request free{};
      free.op = static_cast<uint32_t>(proto::RequestOp::kFree);
      free.slot = slot;
      free.id = row.id.load(std::memory_order_relaxed);
      free.ticket = row.ticket.load(std::memory_order_relaxed);
      producer_.Push(free);
    }
    recycled_.push_back(slot);
    return true;
  });
}

}  // namespace ravenstore::client
