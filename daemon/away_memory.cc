#include "daemon/away_memory.h"

#include <string>
#include <utility>

#include "core/check.h"
#include "device/medium_channel.h"
#include "device/watched_medium.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::DeviceId;
using core::ToInt;
using device::Channel;
using device::Direction;

// As many as a channel has under way: one that fails among others that do not is no reason.
constexpr uint32_t kFailuresMost = device::MediumChannelOptions{}.depth;

// Memory that has addresses, those of `range`.
class RangeMemory : public AwayMemory {
 public:
  RangeMemory(device::Devices devices, std::shared_ptr<device::VaRange> range)
      : devices_(std::move(devices)), range_(std::move(range)) {}

  device::Target TargetAt(Bytes offset) override { return range_->base() + offset.count(); }
  device::Source SourceAt(Bytes offset) override { return range_->base() + offset.count(); }
  Bytes granularity() const override { return core::kExtentAlignment; }
  core::Status Make(Bytes offset, Bytes bytes) override { return range_->Create(offset, bytes); }
  core::Status Destroy(Bytes offset) override { return range_->Unmap(offset); }

 protected:
  const device::Devices devices_;

 private:
  const std::shared_ptr<device::VaRange> range_;
};

class HostPoolMemory : public RangeMemory {
 public:
  using RangeMemory::RangeMemory;

  core::Result<std::unique_ptr<Channel>> Open(DeviceId device, Direction direction) override {
    return devices_[ToInt(device)]->OpenChannel(direction);
  }
  bool IsStaged(DeviceId) const override { return false; }
  core::Status Health() const override { return core::Ok(); }
};

class PeerShareMemory : public RangeMemory {
 public:
  PeerShareMemory(device::Devices devices, DeviceId owner, std::unique_ptr<device::VaRange> range,
                  Bytes bytes, std::set<DeviceId> reached_by)
      : RangeMemory(std::move(devices), std::move(range)),
        owner_(owner),
        reached_by_(std::move(reached_by)) {
    if (bytes > Bytes{}) slabs.Add(Bytes{}, bytes);
  }

  core::Result<std::unique_ptr<Channel>> Open(DeviceId device, Direction direction) override {
    device::Device& here = *devices_[ToInt(device)];
    device::Device& there = *devices_[ToInt(owner_)];
    device::Device& from = direction == Direction::kHostToDevice ? there : here;
    if (!IsStaged(device)) return from.OpenPeerChannel();
    return device::OpenStagedChannel(from, &from == &here ? there : here, kSeldomUsed);
  }
  bool IsStaged(DeviceId device) const override { return !reached_by_.contains(device); }
  std::optional<DeviceId> owner() const override { return owner_; }
  core::Result<std::unique_ptr<Channel>> OpenToHost() override {
    return devices_[ToInt(owner_)]->OpenChannel(Direction::kDeviceToHost);
  }
  void Ended(bool ok, core::Tick now) override {
    if (ok) failures_ = 0;
    if (!ok && now != std::exchange(last_failure_, now)) ++failures_;
  }
  core::Status Health() const override {
    if (failures_ < kFailuresMost) return core::Ok();
    return core::Error{core::ErrorCode::kDevice, devices_[ToInt(owner_)]->info().uuid + ": " +
                                                     std::to_string(failures_) +
                                                     " copies in a row failed"};
  }

 private:
  // Another way costs less unless all else is full: a small ring will do.
  static constexpr device::MediumChannelOptions kSeldomUsed{.chunk = core::MiB(1), .depth = 4};

  const DeviceId owner_;
  const std::set<DeviceId> reached_by_;
  uint32_t failures_ = 0;
  core::Tick last_failure_{};
};

class MediumMemory : public AwayMemory {
 public:
  MediumMemory(device::Devices devices, std::unique_ptr<device::Medium> medium)
      : devices_(std::move(devices)), medium_(std::move(medium), kFailuresMost) {
    slabs.Add(Bytes{}, medium_.size());
  }

  device::Target TargetAt(Bytes offset) override { return {medium_, offset}; }
  device::Source SourceAt(Bytes offset) override { return {medium_, offset}; }
  Bytes granularity() const override { return medium_.granularity(); }
  core::Result<std::unique_ptr<Channel>> Open(DeviceId device, Direction direction) override {
    const auto access = direction == Direction::kHostToDevice ? device::MediumAccess::kRead
                                                              : device::MediumAccess::kWrite;
    return device::OpenMediumChannel(*devices_[ToInt(device)], access, {});
  }
  bool IsStaged(DeviceId) const override { return true; }
  core::Status Health() const override { return medium_.Health(); }

 private:
  const device::Devices devices_;
  device::WatchedMedium medium_;
};

class PiecedMemory : public AwayMemory {
 public:
  PiecedMemory(device::Devices devices, std::unique_ptr<device::PiecedMedium> medium)
      : devices_(std::move(devices)), medium_(std::move(medium)) {}

  device::Target TargetAt(Bytes offset) override { return {*medium_, offset}; }
  device::Source SourceAt(Bytes offset) override { return {*medium_, offset}; }
  Bytes granularity() const override { return medium_->granularity(); }
  core::Result<std::unique_ptr<Channel>> Open(DeviceId device, Direction direction) override {
    const auto access = direction == Direction::kHostToDevice ? device::MediumAccess::kRead
                                                              : device::MediumAccess::kWrite;
    return device::OpenMediumChannel(*devices_[ToInt(device)], access, kOptions);
  }
  bool IsStaged(DeviceId) const override { return true; }
  core::Result<std::unique_ptr<Channel>> OpenToHost() override {
    return device::OpenMediumChannel(device::MediumAccess::kRead, kOptions);
  }
  core::Status Make(Bytes offset, Bytes bytes) override {
    RAVEN_CHECK(bytes == medium_->piece());
    return medium_->Make(offset);
  }
  core::Status Destroy(Bytes offset) override { return medium_->Destroy(offset); }
  core::Status Health() const override { return core::Ok(); }

 private:
  static constexpr device::MediumChannelOptions kOptions{.goes_on = true};

  const device::Devices devices_;
  const std::unique_ptr<device::PiecedMedium> medium_;
};

}  // namespace

core::Result<std::unique_ptr<Channel>> AwayMemory::OpenToHost() {
  RAVEN_CHECK(false);
}
core::Status AwayMemory::Make(Bytes, Bytes) {
  RAVEN_CHECK(false);
}
core::Status AwayMemory::Destroy(Bytes) {
  RAVEN_CHECK(false);
}

std::unique_ptr<AwayMemory> HostMemory(device::Devices devices,
                                       std::shared_ptr<device::VaRange> range) {
  return std::make_unique<HostPoolMemory>(std::move(devices), std::move(range));
}

std::unique_ptr<AwayMemory> PeerMemory(device::Devices devices, DeviceId owner,
                                       std::unique_ptr<device::VaRange> range, Bytes bytes,
                                       std::set<DeviceId> reached_by) {
  return std::make_unique<PeerShareMemory>(std::move(devices), owner, std::move(range), bytes,
                                           std::move(reached_by));
}

std::unique_ptr<AwayMemory> MemoryInPieces(device::Devices devices,
                                           std::unique_ptr<device::PiecedMedium> medium) {
  return std::make_unique<PiecedMemory>(std::move(devices), std::move(medium));
}

std::unique_ptr<AwayMemory> MemoryOf(device::Devices devices,
                                     std::unique_ptr<device::Medium> medium) {
  return std::make_unique<MediumMemory>(std::move(devices), std::move(medium));
}

}  // namespace ravenstore::daemon
