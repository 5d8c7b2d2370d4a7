// The links between pools, as the planner reckons with them.
#pragma once

#include <chrono>
#include <vector>

#include "core/result.h"

#include "core/topology.h"
#include "device/device.h"
#include "device/medium.h"

namespace ravenstore::daemon {

// Measures each device's copies both ways, one device after the other: together they would slow
// each other down. Where that fails, or takes longer than `time_limit`, LinkModel's rates are
// assumed and a warning is logged. Cost: some 150 ms a device, most of them for pinned memory.
// Threads: one that may wait.
std::vector<core::LinkModel> MeasureLinks(
    const device::Devices& devices, std::chrono::nanoseconds time_limit = std::chrono::seconds(2));

// How fast `medium` is read and written, in bytes per second.
struct MediumRates {
  double read = 0;
  double write = 0;
};
// Measures it for half a second each, writing over what is there.
// Errors: those of the medium, and kTimedOut where not one piece of 4 MiB is moved in two seconds.
// Threads: one that may wait.
core::Result<MediumRates> MeasureMedium(device::Medium& medium);

}  // namespace ravenstore::daemon
