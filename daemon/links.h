// The links between the devices and the host pool, as the planner reckons with them.
#pragma once

#include <vector>

#include "core/topology.h"
#include "device/device.h"

namespace ravenstore::daemon {

// Measures each device's copies both ways, one device after the other: together they would slow
// each other down. Where that fails, or takes more than two seconds, LinkModel's rates are assumed
// and a warning is logged.
// Cost: some 150 ms a device, most of them for pinned memory. Threads: one that may wait.
std::vector<core::LinkModel> MeasureLinks(const device::Devices& devices);

}  // namespace ravenstore::daemon
