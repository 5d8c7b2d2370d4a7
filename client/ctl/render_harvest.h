// What is harvested of the devices, as ravenctl shows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "client/ctl/render.h"
#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

// Of one device, or of all.
std::string HarvestText(const proto::Stats& stats, std::optional<uint32_t> device,
                        size_t columns = kColumns);
std::string HarvestJson(const proto::Stats& stats, std::optional<uint32_t> device);

std::string GivenBackText(const proto::GiveBackHarvest& wanted,
                          const proto::HarvestGivenBack& given);
std::string GivenBackJson(const proto::HarvestGivenBack& given);

}  // namespace ravenstore::client::ctl
