#include "daemon/links.h"

#include <spdlog/spdlog.h>

#include <chrono>

#include "core/result.h"
#include "device/link_bounds.h"

namespace ravenstore::daemon {

std::vector<core::LinkModel> MeasureLinks(const device::Devices& devices) {
  device::LinkBoundsOptions options;
  options.per_round = core::MiB(64);
  options.rounds = 2;
  options.window = core::MiB(32);
  options.one_way = true;
  options.time_limit = std::chrono::seconds(2);
  std::vector<core::LinkModel> links;
  for (const auto& device : devices) {
    core::LinkModel& link = links.emplace_back();
    const auto bounds = device::MeasureLink(*device, options);
    if (!bounds.ok()) {
      spdlog::warn("the link of {} could not be measured, {:.1f} GB/s are assumed: {}",
                   device->info().uuid, link.up_bytes_per_second / 1e9,
                   core::Describe(bounds.error()));
      continue;
    }
    link.up_bytes_per_second = bounds->up;
    link.down_bytes_per_second = bounds->down;
    spdlog::info("the link of {}: {:.1f} GB/s to the device, {:.1f} GB/s from it",
                 device->info().uuid, bounds->up / 1e9, bounds->down / 1e9);
  }
  return links;
}

}  // namespace ravenstore::daemon
