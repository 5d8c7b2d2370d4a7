// The host backend's copy engine: a simulated link and the channels that share it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "core/types.h"
#include "device/device.h"

namespace ravenstore::device {

// One direction of a simulated link. Copies have it one after the other; each holds it for the
// latency and for its bytes.
// Threads: any.
class HostLink {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `bytes_per_second` of 0 is an endless rate.
  HostLink(double bytes_per_second, core::Duration latency);

  // When a copy of `bytes`, queued at `queued`, has gone over the link.
  TimePoint Occupy(TimePoint queued, core::Bytes bytes);
  // False when no copy needs to be held back.
  bool paced() const { return bytes_per_second_ > 0 || latency_ > core::Duration{}; }

 private:
  const double bytes_per_second_;
  const core::Duration latency_;
  std::mutex mutex_;
  TimePoint free_at_{};  // guarded by mutex_
};

// The faults of HostOptions, counted over all devices of one OpenHostDevices.
// Threads: any.
class HostFaults {
 public:
  explicit HostFaults(const HostOptions& options)
      : fail_create_(options.fail_create), fail_copy_(options.fail_copy), fault_(options.fault) {}

  // How a copy goes.
  HostFault OfCopy(HostStep step);
  // Takes as long as the step is late. Errors: kDevice, it fails.
  Status Pass(HostStep step);
  static void Delay();

 private:
  HostFault Of(HostStep step) { return fault_ ? fault_(step) : HostFault::kNone; }

  const std::function<bool(uint64_t)> fail_create_;
  const std::function<bool(uint64_t)> fail_copy_;
  const std::function<HostFault(HostStep)> fault_;
  std::atomic<uint64_t> creates_{0};
  std::atomic<uint64_t> copies_{0};
};

// A channel over `link` whose copies are such steps. `name` (the device's UUID) begins its error
// messages.
std::unique_ptr<Channel> OpenHostChannel(std::string name, HostStep step,
                                         std::shared_ptr<HostLink> link,
                                         std::shared_ptr<HostFaults> faults);

}  // namespace ravenstore::device
