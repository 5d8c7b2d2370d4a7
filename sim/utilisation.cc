#include "sim/utilisation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "sim/trace_builder.h"

namespace ravenstore::sim {

using core::Bytes;

namespace {

// In GiB: the quantiles are 1.645 deviations apart.
constexpr double kMean = 23.07;
constexpr double kDeviation = 5.02;
// A busy minute keeps kKept of the distance to the mean, so that its change has a deviation of
// kDeviation * sqrt(2 * (1 - kKept)) = 5.47 GiB. Of such minutes 71% move more than 2 GiB and 6%
// more than 10.2, which is 23% and 2% of all.
constexpr double kBusyMinutes = 0.322;
constexpr double kKept = 0.406;
// The others move by 0.1 GiB or so.
constexpr double kKeptAtRest = 0.9998;
constexpr double kLeast = 0.5;  // a context

double Normal(std::mt19937_64& random) {
  const double radius = std::sqrt(-2 * std::log(1 - Unit(random)));
  return radius * std::cos(2 * std::numbers::pi * Unit(random));
}

}  // namespace

Container::Container(std::mt19937_64& random) : gib_(kMean + kDeviation * Normal(random)) {}

void Container::Pass(std::mt19937_64& random) {
  const double kept = Unit(random) < kBusyMinutes ? kKept : kKeptAtRest;
  gib_ = kMean + kept * (gib_ - kMean) + std::sqrt(1 - kept * kept) * kDeviation * Normal(random);
}

Bytes Container::used() const {
  return Bytes(static_cast<uint64_t>(std::max(gib_, kLeast) * 0x1p30));
}

std::vector<std::vector<Bytes>> GenerateUtilisation(const UtilisationOptions& options) {
  std::mt19937_64 random(options.seed);
  std::vector<std::vector<Bytes>> used(options.gpus);
  for (std::vector<Bytes>& gpu : used) {
    std::vector<std::optional<Container>> slots(options.containers);
    for (auto& slot : slots) {
      if (Unit(random) < options.lives / (options.lives + options.vacant)) slot.emplace(random);
    }
    for (size_t minute = 0; minute < options.minutes; ++minute) {
      Bytes all;
      for (auto& slot : slots) {
        if (slot) all += slot->used();
        if (slot && Unit(random) < 1 / options.lives) {
          slot.reset();
        } else if (slot) {
          slot->Pass(random);
        } else if (Unit(random) < 1 / options.vacant) {
          slot.emplace(random);
        }
      }
      gpu.push_back(std::min(all, options.memory));
    }
  }
  return used;
}

}  // namespace ravenstore::sim
