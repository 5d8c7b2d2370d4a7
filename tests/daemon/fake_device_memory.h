// What the store holds of devices, and what is free of them, as a test says.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "daemon/device_memory.h"

namespace ravenstore::daemon {

class FakeDeviceMemory final : public DeviceMemory {
 public:
  explicit FakeDeviceMemory(size_t devices) : usage{std::vector<core::Bytes>(devices), {}} {
    usage.free.resize(devices);
    limits.resize(devices);
  }

  Usage usage;
  core::Bytes kept;
  std::vector<core::Bytes> limits;  // as set; 0: never
  size_t drivers_asked = 0;

  // Answers all pending questions.
  void Answer() {
    for (auto& asked : std::exchange(asked_, {})) asked();
  }
  size_t questions() const { return asked_.size(); }

  void Find(std::function<void(const Usage&)> then) override {
    ++drivers_asked;
    asked_.push_back([this, then = std::move(then)] { then(usage); });
  }
  void FindHeld(std::function<void(const Usage&)> then) override {
    asked_.push_back([this, then = std::move(then)] { then(Usage{usage.held, {}}); });
  }
  void FindFor(core::TenantId, size_t device,
               std::function<void(const DeviceUsage&)> then) override {
    asked_.push_back([this, device, then = std::move(then)] {
      then({usage.held[device], kept, usage.free[device]});
    });
  }
  void SetLimit(size_t device, core::Bytes capacity) override { limits[device] = capacity; }

 private:
  std::vector<std::function<void()>> asked_;
};

}  // namespace ravenstore::daemon
