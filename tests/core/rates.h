// Topologies of planners under test.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "core/planner.h"
#include "core/topology.h"

namespace ravenstore::core {

// The devices of `options` joined to its host pool, each at its rate of `bytes_per_second` both
// ways.
inline Topology DevicesAtRates(const PlannerOptions& options,
                               const std::vector<double>& bytes_per_second) {
  std::vector<LinkModel> links;
  for (const double rate : bytes_per_second) {
    links.push_back({.up_bytes_per_second = rate, .down_bytes_per_second = rate});
  }
  return DevicesAroundHost(options.device_capacity, options.host_capacity, options.granularity,
                           links)
      .value();
}

// The same with one rate for all.
inline Topology DevicesAtRate(const PlannerOptions& options, double bytes_per_second) {
  return DevicesAtRates(options,
                        std::vector<double>(options.device_capacity.size(), bytes_per_second));
}

// A pool beside devices and host, with its rates towards a device and back; of fixed size, what is
// harvested of the device of that number (of each device once), or what other nodes lend.
struct OtherPool {
  PoolKind kind =
      PoolKind::kFile;  // a file is joined to the host, a peer's share to each device too
  Bytes capacity;
  double in = 0;
  double out = 0;
  std::optional<uint16_t> harvest_of = {};
  Bytes chunk = MiB(256);  // of one that comes and goes
};

inline Topology WithPools(const Topology& topology, const std::vector<OtherPool>& others) {
  std::vector<Pool> pools = topology.pools();
  std::vector<Link> links = topology.links();
  const auto devices = static_cast<uint16_t>(pools.size() - 1);
  for (const OtherPool& other : others) {
    const PoolId id{static_cast<uint16_t>(pools.size())};
    const bool comes_and_goes = other.harvest_of || other.kind == PoolKind::kRemote;
    pools.push_back({other.kind, other.harvest_of.value_or(ToInt(id)), other.capacity,
                     kExtentAlignment, /*addressable=*/false,
                     comes_and_goes ? other.chunk : Bytes{}, other.harvest_of.has_value()});
    links.push_back({kHostPool, id, {}, other.out, other.in});
    for (uint16_t i = 0; i < devices && other.kind == PoolKind::kPeer; ++i)
      links.push_back({PoolOf(DeviceId{i}), id, {}, other.out, other.in});
  }
  return Topology::Make(std::move(pools), std::move(links), MiB(16)).value();
}

}  // namespace ravenstore::core
