#include "daemon/away_memory.h"

#include <utility>

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

class HostPoolMemory : public AwayMemory {
 public:
  HostPoolMemory(device::Devices devices, std::shared_ptr<device::VaRange> range)
      : devices_(std::move(devices)), range_(std::move(range)) {}

  device::Target TargetAt(Bytes offset) override { return range_->base() + offset.count(); }
  device::Source SourceAt(Bytes offset) override { return range_->base() + offset.count(); }
  Bytes granularity() const override { return core::kExtentAlignment; }
  core::Result<std::unique_ptr<Channel>> Open(DeviceId device, Direction direction) override {
    return devices_[ToInt(device)]->OpenChannel(direction);
  }
  bool IsStaged(DeviceId) const override { return false; }
  core::Status Health() const override { return core::Ok(); }

 private:
  const device::Devices devices_;
  const std::shared_ptr<device::VaRange> range_;
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

}  // namespace

std::unique_ptr<AwayMemory> HostMemory(device::Devices devices,
                                       std::shared_ptr<device::VaRange> range) {
  return std::make_unique<HostPoolMemory>(std::move(devices), std::move(range));
}

std::unique_ptr<AwayMemory> MemoryOf(device::Devices devices,
                                     std::unique_ptr<device::Medium> medium) {
  return std::make_unique<MediumMemory>(std::move(devices), std::move(medium));
}

}  // namespace ravenstore::daemon
