#include "bench/harvest_owners.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/unaware_owner.h"
#include "core/types.h"
#include "sim/hardware.h"
#include "sim/utilisation.h"

namespace ravenstore::bench {

using core::Bytes;
using core::GiB;

namespace {

// A node of 8 A100 of 80 GB.
constexpr const char* kNode = "a100-pcie4";
constexpr size_t kGpus = 8;
constexpr size_t kHours = 24;

// Growth of owners without the interceptor, in bytes per second: assumed for a first step,
// while kernels are loaded and the driver makes the memory; and faster, up to steps that ran
// before, of which the recorded ones grow by at most 23 GiB in 100 ms.
constexpr double kGrowth = 16 * 0x1p30;
constexpr double kFasterGrowths[] = {32 * 0x1p30, 64 * 0x1p30, 256 * 0x1p30};
// The reserve unless one is configured, as a part of the GPU's memory.
constexpr uint64_t kDefaultReservePart = 8;
constexpr const char* kErrorsADay = "errors a day";

std::string Words(const char* format, double a, double b) {
  char text[160];
  std::snprintf(text, sizeof text, format, a, b);
  return text;
}

// Of all GPUs, with what is harvested summed.
UnawareOutcome SimulateUnawareOwners(const std::vector<std::vector<Bytes>>& used,
                                     const UnawareOptions& options) {
  UnawareOutcome sum;
  for (const std::vector<Bytes>& gpu : used) {
    UnawareOptions of_gpu = options;
    of_gpu.seed += static_cast<uint64_t>(&gpu - used.data());
    const UnawareOutcome one = SimulateUnawareOwner(gpu, of_gpu);
    sum.pieces += one.pieces;
    sum.errors += one.errors;
    sum.harvested += one.harvested;
  }
  return sum;
}

void ReportUnawareOwners(const std::vector<std::vector<Bytes>>& used, Bytes reserve, Figure figure,
                         const Report& report) {
  UnawareOptions options{
      .memory = sim::FindHardware(kNode)->memory, .reserve = reserve, .rate = kGrowth};
  const UnawareOutcome outcome = SimulateUnawareOwners(used, options);
  const auto gpus = static_cast<double>(used.size());
  figure.value =
      static_cast<double>(outcome.errors) * kHours * 60 / static_cast<double>(used.front().size());
  figure.detail = std::to_string(outcome.errors) + " of " + std::to_string(outcome.pieces) +
                  Words(" allocations at %.0f GiB/s, %.1f GiB a GPU harvested in the mean",
                        kGrowth * 0x1p-30, outcome.harvested * 0x1p-30 / gpus);
  for (const double rate : kFasterGrowths) {
    options.rate = rate;
    figure.detail +=
        Words("; %.0f at %.0f GiB/s",
              static_cast<double>(SimulateUnawareOwners(used, options).errors), rate * 0x1p-30);
  }
  report(figure);
}

}  // namespace

void MeasureUnawareOwners(double scale, const Report& report) {
  const auto minutes = std::max<size_t>(60, static_cast<size_t>(kHours * 60 * scale));
  const auto used = sim::GenerateUtilisation(
      {.gpus = kGpus, .minutes = minutes, .memory = sim::FindHardware(kNode)->memory});
  for (const uint64_t gibs : {1, 2, 4, 8, 12, 16}) {
    ReportUnawareOwners(
        used, GiB(gibs),
        {.name = "harvest.unaware_oom." + std::to_string(gibs) + "gib", .unit = kErrorsADay},
        report);
  }
  ReportUnawareOwners(used, Bytes(sim::FindHardware(kNode)->memory.count() / kDefaultReservePart),
                      {.name = "harvest.unaware_oom.default", .unit = kErrorsADay, .target = 0},
                      report);
}

}  // namespace ravenstore::bench
