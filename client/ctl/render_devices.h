// Whose the memory of the devices is, and whether they compute, as text for people and as JSON for
// programs. Pure.
//
// All is empty for a daemon that does not say.
#pragma once

#include <cstddef>
#include <string>

#include "client/ctl/json.h"
#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

// A paragraph a device, with the processes that the daemon names.
std::string DeviceUsesText(const proto::Stats& stats, size_t columns);
// A row a device.
std::string DeviceUsesTable(const proto::Stats& stats, size_t columns);
// "busy 87%": whether the device computes, or did lately, and how much of the time now.
std::string ComputeText(const proto::DeviceUse& use);
// The same, and a member "memory" of what is written.
void AddDeviceUse(JsonWriter& json, const proto::DeviceUse& use);

}  // namespace ravenstore::client::ctl
