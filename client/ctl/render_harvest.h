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

std::string ReturnedText(const proto::ReturnHarvest& wanted,
                         const proto::HarvestReturned& returned);
std::string ReturnedJson(const proto::HarvestReturned& returned);

}  // namespace ravenstore::client::ctl
