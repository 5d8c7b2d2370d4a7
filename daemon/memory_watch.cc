#include "daemon/memory_watch.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "core/check.h"
#include "core/result.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using device::DeviceProcess;

MemoryWatch::MemoryWatch(device::Devices devices, std::vector<core::IdleMemory> idle,
                         Options options)
    : options_(options) {
  RAVEN_CHECK(devices.size() == idle.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    watched_.emplace_back(std::move(devices[i]), std::move(idle[i]));
    watched_.back().seen.fault = "it was not looked at yet";
  }
}

void MemoryWatch::Run(const std::function<void()>& looked) {
  for (;;) {
    Look(ipc::Now());
    looked();
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, options_.interval, [this] { return stopping_; })) return;
  }
}

void MemoryWatch::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

void MemoryWatch::Look(core::Tick now) {
  for (Watched& watched : watched_) Look(now, &watched);
}

void MemoryWatch::Look(core::Tick now, Watched* watched) {
  device::Device& device = *watched->device;
  const auto use = device.ReadMemoryUse();
  Seen seen;
  seen.at = now;
  seen.processes = watched->seen.processes;
  if (use.ok()) {
    watched->idle.Look(now, use->free);
    watched->least_free.Add(now, use->free);
    seen.free = use->free;
    seen.least_free = watched->least_free.least();
    seen.idle = watched->idle.idle();
    seen.context = use->context;
  } else {
    watched->idle.Forget();
    watched->least_free = core::SlidingMinimum(kLeastOf);
    seen.fault = core::Describe(use.error());
    WarnOnce("what of " + device.info().uuid + " is free is not known: " + seen.fault);
  }
  if (now >= watched->ask_processes) AskProcesses(now, watched, &seen);
  LookAtCompute(now, watched, &seen);
  std::lock_guard lock(mutex_);
  watched->seen = std::move(seen);
}

void MemoryWatch::LookAtCompute(core::Tick now, Watched* watched, Seen* seen) {
  const auto utilization = watched->device->ReadUtilization();
  if (utilization.ok()) {
    seen->utilization = *utilization;
  } else {
    WarnOnce("whether " + watched->device->info().uuid +
             " computes is not known, it counts as busy: " + core::Describe(utilization.error()));
  }
  Average(now, watched, seen);
  bool computes = seen->utilization.value_or(kBusyFrom) >= kBusyFrom;
  // The daemon's own copies count as much as kernels: they are others' only where others are. Who
  // is may have come since it was asked.
  if (computes && watched->alone) AskProcesses(now, watched, seen);
  computes = computes && !watched->alone;
  if (computes) watched->busy_until = now + options_.busy_for;
  seen->busy = computes || now < watched->busy_until;
}

// An exponential average: what was seen so long ago counts 1/e.
void MemoryWatch::Average(core::Tick now, Watched* watched, Seen* seen) {
  std::optional<double>& compute = watched->compute;
  if (!seen->utilization) {
    compute.reset();
  } else {
    const double part = *seen->utilization / 100.0;
    const double passed = core::Seconds(now - watched->computed_at) / core::Seconds(kComputeOver);
    compute = compute ? part + (*compute - part) * std::exp(-passed) : part;
  }
  watched->computed_at = now;
  seen->compute = compute;
}

void MemoryWatch::AskProcesses(core::Tick now, Watched* watched, Seen* seen) {
  watched->ask_processes = now + kProcessesEvery;
  auto processes = watched->device->ReadProcesses();
  if (!processes.ok()) {
    WarnOnce("which processes use the devices is not known: " + core::Describe(processes.error()));
    watched->alone = false;
    seen->processes.clear();
    return;
  }
  std::erase_if(*processes, [own = static_cast<uint32_t>(::getpid())](const auto& process) {
    return process.pid == own;
  });
  watched->alone = processes->empty();
  std::ranges::sort(*processes, std::greater<>(), &DeviceProcess::bytes);
  if (processes->size() > kProcessesMost) processes->resize(kProcessesMost);
  seen->processes = std::move(*processes);
}

void MemoryWatch::WarnOnce(const std::string& words) {
  if (warned_.insert(words).second) spdlog::warn("{}", words);
}

std::vector<MemoryWatch::Seen> MemoryWatch::seen() const {
  std::lock_guard lock(mutex_);
  std::vector<Seen> all;
  for (const Watched& watched : watched_) all.push_back(watched.seen);
  return all;
}

}  // namespace ravenstore::daemon
