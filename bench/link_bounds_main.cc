// Prints what the links and stream calls of every device cost: link_bounds [host|cuda|auto].
#include <stdio.h>

#include <string>

#include "device/link_bounds.h"
#include "device/open.h"

namespace ravenstore {
namespace {

int Report(const std::string& backend) {
  const auto devices = device::OpenDevices(backend, {});
  if (!devices.ok()) {
    fprintf(stderr, "%s\n", core::Describe(devices.error()).c_str());
    return 1;
  }
  for (const auto& device : *devices) {
    const auto bounds = device::MeasureLink(*device, {});
    if (!bounds.ok()) {
      fprintf(stderr, "%s\n", core::Describe(bounds.error()).c_str());
      return 1;
    }
    const auto costs = device::MeasureStreamCosts(*device, nullptr, 10000);
    if (!costs.ok()) {
      fprintf(stderr, "%s\n", core::Describe(costs.error()).c_str());
      return 1;
    }
    printf("%s (%s)\n", device->info().uuid.c_str(), device->info().name.c_str());
    printf("  GB/s: up %.1f, down %.1f, duplex %.1f, queue of 1 MiB up %.1f, down %.1f\n",
           bounds->up / 1e9, bounds->down / 1e9, bounds->duplex / 1e9, bounds->up_queue / 1e9,
           bounds->down_queue / 1e9);
    printf("  ns a call: SignalAfter %.0f, Wait %.0f, Capturing %.0f\n", costs->signal_after,
           costs->wait, costs->capturing);
  }
  return 0;
}

}  // namespace
}  // namespace ravenstore

int main(int argc, char** argv) {
  return ravenstore::Report(argc > 1 ? argv[1] : "auto");
}
