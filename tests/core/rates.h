// Topologies of planners under test.
#pragma once

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

// A pool of fixed size beside devices and host, with its rates towards a device and back.
struct OtherPool {
  PoolKind kind =
      PoolKind::kFile;  // a file is joined to the host, a peer's share to each device too
  Bytes capacity;
  double in = 0;
  double out = 0;
};

inline Topology WithPools(const Topology& topology, const std::vector<OtherPool>& others) {
  std::vector<Pool> pools = topology.pools();
  std::vector<Link> links = topology.links();
  const auto devices = static_cast<uint16_t>(pools.size() - 1);
  for (const OtherPool& other : others) {
    const PoolId id{static_cast<uint16_t>(pools.size())};
    pools.push_back({other.kind, ToInt(id), other.capacity, kExtentAlignment});
    links.push_back({kHostPool, id, {}, other.out, other.in});
    for (uint16_t i = 0; i < devices && other.kind == PoolKind::kPeer; ++i)
      links.push_back({PoolOf(DeviceId{i}), id, {}, other.out, other.in});
  }
  return Topology::Make(std::move(pools), std::move(links), MiB(16)).value();
}

}  // namespace ravenstore::core
