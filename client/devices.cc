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
    if (Mapped(offset, bytes)) return core::Ok();
    if (auto failure = FailureIn(offset, bytes)) return *std::move(failure);
    const Phase now = phase.load(std::memory_order_acquire);
    if (now != Phase::kAttached) return RefusalOf(now);
    if (ipc::Now() >= deadline) {
      return Error{ErrorCode::kTimedOut,
                   "the memory of a tensor on device " + std::to_string(local_ordinal_) +
                       " was not mapped in time" +
                       (missed_.empty() ? "" : "; its descriptor did not arrive: " + missed_)};
    }
    changed_.wait_for(lock, kSlice);
  }
}

std::optional<Error> ClientDevice::FailureIn(uint64_t offset, uint64_t bytes) const {
  for (const auto& [begin, failed] : failed_) {
    if (begin < offset + bytes && offset < begin + failed.bytes) return failed.why;
  }
  return std::nullopt;
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

Status ClientDevice::Import(uint32_t memory, Bytes bytes, Result<ipc::UniqueFd> descriptor) {
  Result<Memory> imported = ImportFrom(bytes, std::move(descriptor));
  Status status = imported.ok() ? core::Ok() : Status(imported.error());
  memories_.insert_or_assign(memory, std::move(imported));
  return status;
}

Result<ClientDevice::Memory> ClientDevice::ImportFrom(Bytes bytes,
                                                      Result<ipc::UniqueFd> descriptor) {
  RAVEN_ASSIGN_OR_RETURN(ipc::UniqueFd taken, std::move(descriptor));
  RAVEN_RETURN_IF_ERROR(Prepare());
  return device_->ImportMemory(std::move(taken), bytes);
}

Status ClientDevice::Map(uint32_t memory, uint64_t offset, uint64_t bytes) {
  const bool inside = bytes > 0 && offset < arena_bytes_ && bytes <= arena_bytes_ - offset;
  if (!inside || offset % granularity_ != 0 || bytes % granularity_ != 0) {
    return Error{ErrorCode::kCorrupt, "the daemon maps memory outside the arena"};
  }
  Status mapped = MapInto(memory, offset, bytes);
  std::lock_guard lock(mutex_);
  if (mapped.ok()) {
    Mark(offset, bytes, true);
  } else {
    failed_.insert_or_assign(offset, Failed{bytes, mapped.error()});
  }
  changed_.notify_all();
  return mapped;
}

Status ClientDevice::MapInto(uint32_t memory, uint64_t offset, uint64_t bytes) {
  const auto found = memories_.find(memory);
  if (found == memories_.end() || mappings_.contains(offset)) {
    return Error{ErrorCode::kCorrupt, "the daemon maps memory that it did not send, or twice"};
  }
  RAVEN_ASSIGN_OR_RETURN(Memory imported, found->second);
  if (imported->size() != Bytes(bytes)) {
    return Error{ErrorCode::kCorrupt,
                 "the daemon maps " + std::to_string(bytes) + " bytes of memory of another size"};
  }
  RAVEN_RETURN_IF_ERROR(arena_->Map(Bytes(offset), std::move(imported)));
  mappings_[offset] = bytes;
  return core::Ok();
}

Status ClientDevice::Unmap(uint64_t offset) {
  const auto found = mappings_.find(offset);
  {
    std::lock_guard lock(mutex_);
    const bool failed = failed_.erase(offset) > 0;
    if (found == mappings_.end()) {
      if (failed) return core::Ok();
      return Error{ErrorCode::kNotFound, "nothing is mapped at " + std::to_string(offset)};
    }
  }
  Mark(offset, found->second, false);
  mappings_.erase(found);
  return arena_->Unmap(Bytes(offset));
}

Status ClientDevice::Release(uint32_t memory) {
  if (memories_.erase(memory) > 0) return core::Ok();
  return Error{ErrorCode::kNotFound, "there is no memory " + std::to_string(memory)};
}

void ClientDevice::UnmapAll() {
  while (!mappings_.empty()) static_cast<void>(Unmap(mappings_.begin()->first));
  memories_.clear();
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
