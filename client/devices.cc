#include "client/devices.h"

#include <algorithm>
#include <new>
#include <utility>

#include "ipc/clock.h"

namespace ravenstore::client {
namespace {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;

constexpr uint64_t kBitsPerWord = 64;
// How long a waiter for a descriptor sleeps before it looks at its session again.
constexpr auto kSlice = std::chrono::milliseconds(20);

// The bits [first, last] of their word.
constexpr uint64_t BitRange(uint64_t first, uint64_t last) {
  return (~uint64_t{0} << first) & (~uint64_t{0} >> (kBitsPerWord - 1 - last));
}

// Calls visit(index of a word, mask) for the bits [first, last]; stops when it returns false.
template <typename Visit>
bool ForEachWord(uint64_t first, uint64_t last, Visit visit) {
  for (uint64_t word = first / kBitsPerWord; word <= last / kBitsPerWord; ++word) {
    const uint64_t from = word == first / kBitsPerWord ? first % kBitsPerWord : 0;
    const uint64_t to = word == last / kBitsPerWord ? last % kBitsPerWord : kBitsPerWord - 1;
    if (!visit(word, BitRange(from, to))) return false;
  }
  return true;
}

}  // namespace

ClientDevice::ClientDevice(std::shared_ptr<device::Device> device, uint32_t daemon_ordinal,
                           int local_ordinal, Bytes arena_bytes, proto::Segment* segment)
    : device_(std::move(device)),
      daemon_ordinal_(daemon_ordinal),
      local_ordinal_(local_ordinal),
      arena_bytes_(arena_bytes.RoundUp(device_->granularity()).count()),
      granularity_(device_->granularity().count()),
      segment_(segment),
      mapped_((arena_bytes_ / granularity_ + kBitsPerWord - 1) / kBitsPerWord) {}

ClientDevice::~ClientDevice() = default;

Status ClientDevice::Prepare() {
  if (base() != nullptr) return core::Ok();
  std::lock_guard lock(preparing_);
  if (base() != nullptr) return core::Ok();
  if (registration_ == nullptr) {
    auto* words = reinterpret_cast<std::byte*>(segment_) + proto::kWordsOffset;
    RAVEN_ASSIGN_OR_RETURN(registration_, device_->RegisterWords(words, Bytes(proto::kWordsBytes)));
  }
  RAVEN_ASSIGN_OR_RETURN(arena_, device_->ReserveVaRange(Bytes(arena_bytes_)));
  base_.store(arena_->base(), std::memory_order_release);
  return core::Ok();
}

bool ClientDevice::Mapped(uint64_t offset, uint64_t bytes) const {
  if (offset >= arena_bytes_ || bytes > arena_bytes_ - offset) return false;
  return ForEachWord(offset / granularity_, (offset + bytes - 1) / granularity_,
                     [this](uint64_t word, uint64_t mask) {
                       return (mapped_[word].load(std::memory_order_acquire) & mask) == mask;
                     });
}

Status ClientDevice::EnsureMapped(uint64_t offset, uint64_t bytes, Tick deadline,
                                  const PhaseWord& phase) {
  if (offset >= arena_bytes_ || bytes > arena_bytes_ - offset) {
    return Error{ErrorCode::kCorrupt, "the daemon gave a place outside the arena of device " +
                                          std::to_string(local_ordinal_)};
  }
  RAVEN_RETURN_IF_ERROR(Prepare());
  std::unique_lock lock(mutex_);
  while (true) {
    RAVEN_RETURN_IF_ERROR(MapOffered(offset, bytes, &lock));
    if (Mapped(offset, bytes)) return core::Ok();
    const Phase now = phase.load(std::memory_order_acquire);
    if (now != Phase::kAttached) return RefusalOf(now);
    if (ipc::Now() >= deadline) {
      if (IsMapping(offset, bytes)) {
        return Error{ErrorCode::kTimedOut, "the driver has not mapped a slab of device " +
                                               std::to_string(local_ordinal_) + " in time"};
      }
      return Error{ErrorCode::kTimedOut,
                   "the daemon placed a tensor in a slab of device " +
                       std::to_string(local_ordinal_) + " whose descriptor " +
                       (missed_.empty() ? "it did not send" : "did not arrive: " + missed_)};
    }
    changed_.wait_for(lock, kSlice);
  }
}

Status ClientDevice::MapOffered(uint64_t offset, uint64_t bytes,
                                std::unique_lock<std::mutex>* lock) {
  auto found = slabs_.upper_bound(offset);
  if (found != slabs_.begin()) --found;
  for (; found != slabs_.end() && found->first < offset + bytes; ++found) {
    auto& [begin, slab] = *found;
    if (begin + slab.bytes <= offset) continue;
    if (slab.state == Slab::State::kFailed) return *slab.why_not;
    if (slab.state != Slab::State::kOffered) continue;
    // No other thread changes or removes it in this state.
    slab.state = Slab::State::kMapping;
    lock->unlock();
    Status mapped = core::Ok();
    try {
      mapped = arena_->Import(std::move(slab.descriptor), Bytes(begin), Bytes(slab.bytes));
    } catch (const std::bad_alloc&) {  // Release and a fork would wait for ever
      mapped = Error{ErrorCode::kSystem, "no memory left to map a slab"};
    }
    lock->lock();
    if (mapped.ok()) {
      Mark(begin, slab.bytes, true);
      slab.state = Slab::State::kMapped;
    } else {
      slab.why_not = std::move(mapped).error();
      slab.state = Slab::State::kFailed;
    }
    changed_.notify_all();
    if (slab.state == Slab::State::kFailed) return *slab.why_not;
  }
  return core::Ok();
}

bool ClientDevice::IsMapping(uint64_t offset, uint64_t bytes) const {
  return std::any_of(slabs_.begin(), slabs_.end(), [offset, bytes](const auto& entry) {
    const auto& [begin, slab] = entry;
    return slab.state == Slab::State::kMapping && begin < offset + bytes &&
           offset < begin + slab.bytes;
  });
}

void ClientDevice::MapAhead(uint64_t offset) {
  if (base() == nullptr) return;
  std::unique_lock lock(mutex_);
  static_cast<void>(MapOffered(offset, 1, &lock));
}

void ClientDevice::LockForFork() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !IsMapping(0, arena_bytes_); });
  lock.release();
}

void ClientDevice::DropDescriptors() {
  for (auto& [begin, slab] : slabs_) slab.descriptor.reset();
}

void ClientDevice::Mark(uint64_t offset, uint64_t bytes, bool mapped) {
  ForEachWord(offset / granularity_, (offset + bytes - 1) / granularity_,
              [&](uint64_t word, uint64_t mask) {
                if (mapped) {
                  mapped_[word].fetch_or(mask, std::memory_order_release);
                } else {
                  mapped_[word].fetch_and(~mask, std::memory_order_release);
                }
                return true;
              });
}

Status ClientDevice::Offer(uint64_t offset, uint64_t bytes, ipc::UniqueFd descriptor) {
  const bool inside = bytes > 0 && offset < arena_bytes_ && bytes <= arena_bytes_ - offset;
  if (!inside || offset % granularity_ != 0 || bytes % granularity_ != 0) {
    return Error{ErrorCode::kCorrupt, "the daemon offered a slab outside the arena"};
  }
  std::lock_guard lock(mutex_);
  if (slabs_.contains(offset)) {
    return Error{ErrorCode::kCorrupt, "the daemon offered a slab twice"};
  }
  slabs_[offset] = {.bytes = bytes, .descriptor = std::move(descriptor)};
  changed_.notify_all();
  return core::Ok();
}

Status ClientDevice::Release(uint64_t offset) {
  std::unique_lock lock(mutex_);
  const auto found = slabs_.find(offset);
  if (found == slabs_.end()) {
    return Error{ErrorCode::kNotFound, "no slab begins at " + std::to_string(offset)};
  }
  Slab& slab = found->second;
  changed_.wait(lock, [&slab] { return slab.state != Slab::State::kMapping; });
  Status unmapped = core::Ok();
  if (slab.state == Slab::State::kMapped) {
    Mark(offset, slab.bytes, false);
    slab.state = Slab::State::kUnmapping;
    lock.unlock();
    unmapped = arena_->Unmap(Bytes(offset));
    lock.lock();
  }
  slabs_.erase(found);
  return unmapped;
}

void ClientDevice::NoteMissedPacket(const Error& why) {
  std::lock_guard lock(mutex_);
  missed_ = why.message;
}

void ClientDevice::WakeWaiters() {
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

Result<DeviceSet> DeviceSet::Match(const std::vector<DaemonDevice>& daemon,
                                   const device::Devices& local, proto::Segment* segment) {
  DeviceSet set;
  set.by_daemon_.resize(daemon.size(), nullptr);
  set.by_local_.resize(local.size(), nullptr);
  for (const auto& device : local) set.local_uuids_.push_back(device->info().uuid);
  std::string wanted;
  for (size_t i = 0; i < daemon.size(); ++i) {
    wanted += (wanted.empty() ? "" : ", ") + daemon[i].uuid;
    const auto here = std::find(set.local_uuids_.begin(), set.local_uuids_.end(), daemon[i].uuid);
    if (here == set.local_uuids_.end()) continue;
    const auto ordinal = static_cast<int>(here - set.local_uuids_.begin());
    set.devices_.push_back(std::make_unique<ClientDevice>(local[ordinal], static_cast<uint32_t>(i),
                                                          ordinal, daemon[i].arena, segment));
    set.by_daemon_[i] = set.by_local_[ordinal] = set.devices_.back().get();
  }
  if (set.devices_.empty()) {
    return Error{ErrorCode::kNotFound, "this process sees none of the daemon's devices (" + wanted +
                                           "): look at CUDA_VISIBLE_DEVICES"};
  }
  return set;
}

Result<ClientDevice*> DeviceSet::Local(int ordinal) const {
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= by_local_.size()) {
    return Error{ErrorCode::kNotFound, "device " + std::to_string(ordinal) +
                                           ": this process sees " +
                                           std::to_string(by_local_.size()) + " device(s)"};
  }
  if (by_local_[ordinal] == nullptr) {
    return Error{ErrorCode::kNotFound, "device " + std::to_string(ordinal) + " (" +
                                           local_uuids_[ordinal] +
                                           ") is not one of the daemon's devices"};
  }
  return by_local_[ordinal];
}

}  // namespace ravenstore::client
