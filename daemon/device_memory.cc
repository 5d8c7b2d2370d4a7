#include "daemon/device_memory.h"

#include <cstdint>

namespace ravenstore::daemon {

using core::Bytes;

namespace {

core::DeviceId IdOf(size_t device) {
  return core::DeviceId{static_cast<uint16_t>(device)};
}

}  // namespace

Bytes StoreDeviceMemory::HeldOf(size_t device) const {
  const StoreViews& store = loop_->store();
  return store.DeviceTier(IdOf(device)).held + store.Harvested(IdOf(device));
}

std::vector<Bytes> StoreDeviceMemory::Held() const {
  std::vector<Bytes> held;
  for (size_t i = 0; i < devices_.size(); ++i) held.push_back(HeldOf(i));
  return held;
}

Bytes StoreDeviceMemory::Free(size_t device) const {
  const auto free = devices_[device]->FreeBytes();
  return free.ok() ? *free : Bytes{0};
}

void StoreDeviceMemory::Find(std::function<void(const Usage&)> then) {
  loop_->mailbox().Post([this, then = std::move(then)] {
    workers_->Run(kNoUser, [this, then, usage = Usage{Held(), {}}]() mutable {
      for (size_t i = 0; i < devices_.size(); ++i) usage.free.push_back(Free(i));
      mailbox_->Post([then, usage] { then(usage); });
    });
  });
}

void StoreDeviceMemory::FindHeld(std::function<void(const Usage&)> then) {
  loop_->mailbox().Post([this, then = std::move(then)] {
    mailbox_->Post([then, usage = Usage{Held(), {}}] { then(usage); });
  });
}

void StoreDeviceMemory::FindFor(core::TenantId user, size_t device,
                                std::function<void(const DeviceUsage&)> then) {
  loop_->mailbox().Post([this, user, device, then = std::move(then)] {
    DeviceUsage usage{
        .held = HeldOf(device), .kept = loop_->store().Guaranteed(IdOf(device), user), .free = {}};
    workers_->Run(user, [this, device, then, usage]() mutable {
      usage.free = Free(device);
      mailbox_->Post([then, usage] { then(usage); });
    });
  });
}

void StoreDeviceMemory::SetLimit(size_t device, Bytes capacity) {
  loop_->PostEvent(core::DeviceLimit{IdOf(device), capacity});
}

}  // namespace ravenstore::daemon
