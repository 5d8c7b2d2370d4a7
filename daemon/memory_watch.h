// The watch over the devices: what of each one's memory is free, what of that is idle, which
// processes hold the rest, and whether it computes.
//
// A thread of its own looks at every device at an interval, since drivers may take their time;
// which processes there are it asks once a second. A device that does not answer has nothing idle
// and counts as busy, and why is logged once.
//
// Owns: what was seen last. Threads: Run is the watch's own, and Look while Run does not run; seen
// and Stop may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/idle_memory.h"
#include "core/sliding_minimum.h"
#include "core/types.h"
#include "device/device.h"

namespace ravenstore::daemon {

class MemoryWatch {
 public:
  static constexpr core::Duration kProcessesEvery = std::chrono::seconds(1);
  static constexpr core::Duration kLeastOf = std::chrono::minutes(1);
  static constexpr size_t kProcessesMost = 8;
  // Of the time in which it is used, in percent: less is a glance of a monitor.
  static constexpr uint32_t kBusyFrom = 5;
  static constexpr core::Duration kComputeOver = std::chrono::seconds(10);

  struct Options {
    core::Duration interval{};
    core::Duration busy_for{};  // so long a device stays busy once it computes no more
  };

  // Of one device.
  struct Seen {
    core::Tick at{};
    std::string fault;       // why nothing below is known; empty: it is
    core::Bytes free;        // of all processes
    core::Bytes least_free;  // in the last minute
    core::Bytes idle;
    core::Bytes context;                  // of the daemon's own
    std::optional<uint32_t> utilization;  // Device::ReadUtilization; not set: not known
    std::optional<double> compute;        // the same from 0 to 1, over some ten seconds
    // Another process computes there, or did lately, or this is not known.
    bool busy = true;
    // The largest processes except the daemon, the largest first. Advice: their numbers are the
    // driver's, and none may be known.
    std::vector<device::DeviceProcess> processes;
  };

  // `idle`: of each device.
  MemoryWatch(device::Devices devices, std::vector<core::IdleMemory> idle, Options options);

  // Looks until Stop, and calls `looked`, which must not block, after each look.
  void Run(const std::function<void()>& looked = [] {});
  void Stop();
  // Looks at every device once. REQUIRES: `now` is not before that of the last call.
  void Look(core::Tick now);

  // Of each device. Nothing is known before the first look.
  std::vector<Seen> seen() const;

 private:
  struct Watched {
    Watched(std::shared_ptr<device::Device> watched, core::IdleMemory idle_memory)
        : device(std::move(watched)), idle(std::move(idle_memory)) {}

    const std::shared_ptr<device::Device> device;
    core::IdleMemory idle;
    core::SlidingMinimum least_free{kLeastOf};
    core::Tick ask_processes{};  // at the first look from then on
    bool alone = false;          // no other process was there when they were asked for
    core::Tick busy_until{};
    core::Tick computed_at{};  // when `compute` was reckoned last
    std::optional<double> compute;
    Seen seen{};  // guarded by mutex_
  };

  void Look(core::Tick now, Watched* watched);
  void LookAtCompute(core::Tick now, Watched* watched, Seen* seen);
  static void Average(core::Tick now, Watched* watched, Seen* seen);
  void AskProcesses(core::Tick now, Watched* watched, Seen* seen);
  void WarnOnce(const std::string& words);

  const Options options_;
  std::vector<Watched> watched_;
  std::set<std::string> warned_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
};

}  // namespace ravenstore::daemon
