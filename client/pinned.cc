#include "client/pinned.h"

#include <algorithm>
#include <utility>

#include "client/lease.h"
#include "client/session.h"
#include "ipc/clock.h"

namespace ravenstore::client {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;

namespace {

// How long a waiter for a descriptor sleeps before it looks at its session again.
constexpr auto kSlice = std::chrono::milliseconds(20);
// The daemon answers at the deadline, if not before.
constexpr auto kAnswerTime = std::chrono::seconds(1);

}  // namespace

uint64_t PinnedMemory::NewNumber() {
  std::lock_guard lock(mutex_);
  return ++last_number_;
}

Result<device::VaRange*> PinnedMemory::RangeOf(const wire::PinnedAllocated& place,
                                               ClientDevice& device) {
  auto& range = ranges_[place.pool];
  if (range == nullptr) {
    RAVEN_ASSIGN_OR_RETURN(
        range, device.device().ReserveHostVaRange(Bytes(place.pool_bytes), place.numa_node));
  }
  return range.get();
}

Result<uint64_t> PinnedMemory::MapOffered(uint32_t pool, device::VaRange& range, uint64_t offset,
                                          uint64_t bytes) {
  const uint64_t end = offset + bytes;
  while (offset < end) {
    const auto mapped = slabs_.upper_bound({pool, offset});
    if (mapped != slabs_.begin()) {
      const auto& [key, size] = *std::prev(mapped);
      if (key.first == pool && key.second + size > offset) {
        offset = key.second + size;
        continue;
      }
    }
    auto offered = offered_.upper_bound({pool, offset});
    if (offered == offered_.begin()) return offset;
    --offered;
    const auto [begin, size] = std::pair(offered->first.second, offered->second.bytes);
    if (offered->first.first != pool || begin + size <= offset) return offset;
    RAVEN_RETURN_IF_ERROR(
        range.Import(std::move(offered->second.descriptor), Bytes(begin), Bytes(size)));
    offered_.erase(offered);
    slabs_[{pool, begin}] = size;
  }
  return end;
}

Result<std::byte*> PinnedMemory::Map(const wire::PinnedAllocated& place, uint64_t bytes,
                                     ClientDevice& device, Tick deadline, const PhaseWord& phase) {
  if (place.offset >= place.pool_bytes || bytes > place.pool_bytes - place.offset)
    return Error{ErrorCode::kCorrupt, "the daemon gave a block outside its pool"};
  RAVEN_RETURN_IF_ERROR(device.Prepare());
  std::unique_lock lock(mutex_);
  RAVEN_ASSIGN_OR_RETURN(device::VaRange * range, RangeOf(place, device));
  while (true) {
    RAVEN_ASSIGN_OR_RETURN(const uint64_t missing,
                           MapOffered(place.pool, *range, place.offset, bytes));
    if (missing == place.offset + bytes) return range->base() + place.offset;
    const Phase now = phase.load(std::memory_order_acquire);
    if (now != Phase::kAttached) return RefusalOf(now);
    if (ipc::Now() >= deadline) {
      return Error{ErrorCode::kTimedOut,
                   "the daemon placed a block in a slab of pinned memory whose descriptor " +
                       (missed_.empty() ? "it did not send" : "did not arrive: " + missed_)};
    }
    changed_.wait_for(lock, kSlice);
  }
}

void PinnedMemory::Keep(std::byte* address, Block block) {
  std::lock_guard lock(mutex_);
  blocks_[address] = std::move(block);
}

std::optional<PinnedMemory::Block> PinnedMemory::Take(const void* address) {
  std::lock_guard lock(mutex_);
  auto found = blocks_.extract(address);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

bool PinnedMemory::any_blocks() {
  std::lock_guard lock(mutex_);
  return !blocks_.empty();
}

void PinnedMemory::RememberFree(Block block) {
  std::lock_guard lock(mutex_);
  unfreed_.push_back(std::move(block));
}

std::vector<PinnedMemory::Block> PinnedMemory::TakeUnfreed() {
  std::lock_guard lock(mutex_);
  return std::exchange(unfreed_, {});
}

Status PinnedMemory::Offer(const wire::PinnedSlab& slab, ipc::UniqueFd descriptor) {
  std::lock_guard lock(mutex_);
  const SlabKey key{slab.pool, slab.offset};
  if (slabs_.contains(key) || offered_.contains(key))
    return Error{ErrorCode::kCorrupt, "the daemon offered a slab of pinned memory twice"};
  offered_[key] = {slab.bytes, std::move(descriptor)};
  changed_.notify_all();
  return core::Ok();
}

Status PinnedMemory::Release(const wire::ReleasePinnedSlab& slab) {
  std::lock_guard lock(mutex_);
  const SlabKey key{slab.pool, slab.offset};
  offered_.erase(key);
  if (!slabs_.contains(key)) return core::Ok();
  RAVEN_RETURN_IF_ERROR(ranges_.at(slab.pool)->Unmap(Bytes(slab.offset)));
  slabs_.erase(key);
  return core::Ok();
}

void PinnedMemory::NoteMissedPacket(const Error& why) {
  std::lock_guard lock(mutex_);
  missed_ = why.message;
}

void PinnedMemory::Unmap() {
  std::lock_guard lock(mutex_);
  ranges_.clear();
  slabs_.clear();
  offered_.clear();
}

void PinnedMemory::WakeWaiters() {
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

namespace {

// Tickets for what the streams, or all of them on every device, have enqueued so far.
Result<std::vector<uint64_t>> TakeTickets(Session& session, const PinnedMemory::Block& block,
                                          Deadline& deadline) {
  std::vector<uint64_t> tickets;
  const auto take = [&](device::StreamHandle handle, ClientDevice& device) -> Status {
    RAVEN_ASSIGN_OR_RETURN(ClientStream * stream, session.streams().Find(handle, device));
    RAVEN_RETURN_IF_ERROR(stream->CheckNotCapturing());
    RAVEN_ASSIGN_OR_RETURN(const uint64_t ticket, stream->TakeTicket({}, deadline));
    if (ticket != 0) tickets.push_back(ticket);
    return core::Ok();
  };
  for (const device::StreamHandle handle : block.streams)
    RAVEN_RETURN_IF_ERROR(take(handle, *block.device));
  if (!block.streams.empty()) return tickets;
  for (const auto& device : session.devices().all()) {
    if (device->device().InUse()) RAVEN_RETURN_IF_ERROR(take(device::AllStreams(), *device));
  }
  return tickets;
}

Status FreeBlock(Session& session, PinnedMemory::Block block) {
  Deadline deadline(session.timeout());
  auto tickets = TakeTickets(session, block, deadline);
  if (!tickets.ok()) {
    session.pinned().RememberFree(std::move(block));
    return std::move(tickets).error();
  }
  return session.calls().FreePinned(block.number, *std::move(tickets));
}

void RetryPinnedFrees(Session& session) {
  for (PinnedMemory::Block& block : session.pinned().TakeUnfreed())
    static_cast<void>(FreeBlock(session, std::move(block)));
}

}  // namespace

Result<void*> PinnedAlloc(Session& session, uint64_t bytes, const PinnedOptions& options) {
  RAVEN_RETURN_IF_ERROR(session.CheckUsable());
  if (bytes == 0) return Error{ErrorCode::kInvalidArgument, "a block of 0 bytes"};
  RAVEN_ASSIGN_OR_RETURN(ClientDevice * device, session.devices().Local(options.device));
  RetryPinnedFrees(session);
  const core::Duration timeout =
      options.timeout > core::Duration(0) ? options.timeout : session.timeout();
  const Tick deadline = DeadlineAfter(ipc::Now(), timeout);
  const uint64_t number = session.pinned().NewNumber();
  const auto place = session.calls().AllocatePinned(
      {.block = number,
       .bytes = bytes,
       .device = device->daemon_ordinal(),
       .deadline_ns = static_cast<uint64_t>(deadline.time_since_epoch().count())},
      DeadlineAfter(deadline, kAnswerTime));
  auto address = place.ok()
                     ? session.pinned().Map(*place, bytes, *device,
                                            DeadlineAfter(deadline, kAnswerTime), session.phase())
                     : Result<std::byte*>(place.error());
  if (!address.ok()) {
    // The daemon may have one for it all the same.
    static_cast<void>(session.calls().FreePinned(number, {}));
    return std::move(address).error();
  }
  session.pinned().Keep(*address, {.number = number, .device = device, .streams = {}});
  return static_cast<void*>(*address);
}

Status PinnedFree(Session& session, const void* address,
                  std::span<const device::StreamHandle> streams) {
  const Status usable = session.CheckUsable();
  if (!usable.ok() && usable.error().code != ErrorCode::kLost) return usable;
  auto block = session.pinned().Take(address);
  if (!block) {
    return Error{ErrorCode::kInvalidArgument,
                 "no block of pinned memory of this store begins at that address"};
  }
  if (!usable.ok()) return core::Ok();  // the store is lost: no call uses the block again
  RetryPinnedFrees(session);
  block->streams.assign(streams.begin(), streams.end());
  return FreeBlock(session, *std::move(block));
}

bool EndPinned(Session& session) {
  RetryPinnedFrees(session);
  const bool unfreed = !session.pinned().TakeUnfreed().empty();
  if (!session.pinned().any_blocks()) return !unfreed;
  Deadline deadline(session.timeout());
  return TakeTickets(session, {}, deadline).ok() && !unfreed;
}

}  // namespace ravenstore::client
