// The places where bytes lie, the links that join them, and the routes that moves take.
//
// A pool is memory of one kind in one place. A link joins two pools. A route leads from one pool to
// another over one link, or over two through a pool in the middle: then the bytes go through a
// staging ring there, chunk by chunk, and none stays. Routes are found once, when the topology is
// made.
//
// Owns: nothing. Threads: any; a topology never changes.
// Units: rates in bytes per second.
// Cost: O(1) a query; kPoolsMax bounds what a query looks at.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/link_model.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::core {

// A link's place in Topology::links().
enum class LinkId : uint16_t {};

// kPeer: a share of a device's memory in which tensors of other devices lie. kRemote: memory that
// other nodes lend.
enum class PoolKind : uint8_t { kDevice, kHost, kPeer, kFile, kRemote };

struct Pool {
  PoolKind kind = PoolKind::kDevice;
  uint16_t number = 0;  // among those of its kind: of a device, or a share of one, its DeviceId
  Bytes capacity;
  Bytes granularity;         // of places in it; a power of two
  bool addressable = false;  // by clients; else its bytes are reached only by copying
  // Memory of others, which may have to be given back at any time, comes and goes by chunks of so
  // much: of a device's (kPeer) also of less, or of more for what is larger. 0: of fixed size.
  Bytes chunk{};
  // Each tensor there has a place in the host pool as well, kept from the beginning. Otherwise a
  // tensor that is stored only there is lost with its chunk.
  bool covered = false;

  // Of other nodes' memory the chunks are of one size, and so the capacity is whole ones.
  Bytes Piece() const { return kind == PoolKind::kRemote ? chunk : Bytes{}; }
};

// "device 0", "host 0", "peer 0", "file 0", "remote 0".
std::string NameOf(const Pool& pool);

struct Link {
  PoolId a{};
  PoolId b{};
  Duration latency{};  // from a copy's end to its being known
  double a_to_b = 0;
  double b_to_a = 0;
  // Links of one group share bandwidth: bytes go over one of them at a time. 0: of no group.
  uint16_t group = 0;
};

// One link of a route, in the direction of the bytes.
struct Hop {
  LinkId link{};
  PoolId from{};
  PoolId to{};
};

struct Route {
  Hop first;
  std::optional<Hop> second;
  Duration latency{};  // of its links together
  double rate = 0;     // at which a long move goes on
  // At which a move's first chunk goes over the link that does not set the pace: the other waits
  // for it. Infinite where there is one link, or one at a time.
  double fill_rate = std::numeric_limits<double>::infinity();
};

class Topology {
 public:
  static constexpr size_t kPoolsMax = 64;

  // `staging_chunk` is the size of a staging ring's chunks.
  // Errors: kInvalidArgument for a link to a pool that is not there or from a pool to itself, for a
  // rate that is not positive, a negative latency, pools that are too many, have no granularity or
  // are named twice, and for two pools that no route joins. The message says which.
  static Result<Topology> Make(std::vector<Pool> pools, std::vector<Link> links,
                               Bytes staging_chunk);
  // Of no pools.
  Topology() = default;
  // The same with no link of these pools faster than that. REQUIRES: the rates are positive.
  Topology Capped(const std::map<PoolId, double>& rates) const;

  const std::vector<Pool>& pools() const { return pools_; }
  const std::vector<Link>& links() const { return links_; }
  std::optional<PoolId> Find(PoolKind kind, uint16_t number) const;

  // The route that takes the least time for `bytes`. REQUIRES: `from` and `to` are two pools.
  const Route& Best(PoolId from, PoolId to, Bytes bytes) const;
  // How long it takes, if nothing else uses its links. 0 from a pool to itself.
  Duration Cost(PoolId from, PoolId to, Bytes bytes) const;

 private:
  Status CheckPools() const;
  Status CheckLinks() const;
  Status FindRoutes();
  void Consider(const Route& route);
  Duration Time(const Route& route, Bytes bytes) const;
  // Whether `route` takes no longer than `other`, whatever the size.
  bool NeverSlower(const Route& route, const Route& other) const;
  std::vector<Route>& RoutesOf(PoolId from, PoolId to) {
    return routes_[ToInt(from) * pools_.size() + ToInt(to)];
  }

  std::vector<Pool> pools_;
  std::vector<Link> links_;
  Bytes staging_chunk_;
  // For each pair of pools the routes of which each is the fastest for some size.
  std::vector<std::vector<Route>> routes_;
};

// What joins each device to one host pool: device i, of capacities[i] bytes, has a link of its own,
// links[i]. The pools are kHostPool and PoolOf each device, and then `others`, which `other_links`
// join to them.
// Errors: those of Topology::Make.
Result<Topology> DevicesAroundHost(const std::vector<Bytes>& capacities, Bytes host_capacity,
                                   Bytes granularity, const std::vector<LinkModel>& links,
                                   const std::vector<Pool>& others = {},
                                   const std::vector<Link>& other_links = {});

// What `device` and another pool copy at, in long moves. REQUIRES: both are in the topology.
LinkModel LinkBetween(const Topology& topology, DeviceId device, PoolId pool);

}  // namespace ravenstore::core
