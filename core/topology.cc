#include "core/topology.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"

namespace ravenstore::core {
namespace {

// Of the moves that LinkBetween speaks of.
constexpr Bytes kLongMove = MiB(64);
// Routes between a device and another through the host pool are staged in chunks of this size.
constexpr Bytes kStagingChunk = MiB(16);

Error Bad(std::string what) {
  return {ErrorCode::kInvalidArgument, "topology: " + std::move(what)};
}

Route Over(const Hop& hop, const Link& link) {
  return {.first = hop,
          .second = {},
          .latency = link.latency,
          .rate = hop.from == link.a ? link.a_to_b : link.b_to_a};
}

// Chunks are queued on both links ahead of need, so that each link's latency is paid once. The
// slower link then is never idle; the faster one adds the first chunk, or the last.
Route Through(const Route& first, const Route& second, bool one_at_a_time) {
  Route both{
      .first = first.first, .second = second.first, .latency = first.latency + second.latency};
  if (one_at_a_time) {
    both.rate = 1 / (1 / first.rate + 1 / second.rate);
  } else {
    both.rate = std::min(first.rate, second.rate);
    both.fill_rate = std::max(first.rate, second.rate);
  }
  return both;
}

}  // namespace

std::string NameOf(const Pool& pool) {
  const auto kind = [&] {
    switch (pool.kind) {
      case PoolKind::kDevice: return "device ";
      case PoolKind::kHost: return "host ";
      case PoolKind::kPeer: return "peer ";
      case PoolKind::kFile: return "file ";
      case PoolKind::kRemote: return "remote ";
    }
    return "pool ";
  };
  return kind() + std::to_string(pool.number);
}

Result<Topology> Topology::Make(std::vector<Pool> pools, std::vector<Link> links,
                                Bytes staging_chunk) {
  Topology topology;
  topology.pools_ = std::move(pools);
  topology.links_ = std::move(links);
  topology.staging_chunk_ = staging_chunk;
  if (staging_chunk == Bytes{}) return Bad("a staging ring's chunks have no size");
  RAVEN_RETURN_IF_ERROR(topology.CheckPools());
  RAVEN_RETURN_IF_ERROR(topology.CheckLinks());
  RAVEN_RETURN_IF_ERROR(topology.FindRoutes());
  return topology;
}

Topology Topology::Capped(const std::map<PoolId, double>& rates) const {
  std::vector<Link> links = links_;
  for (Link& link : links) {
    for (const PoolId end : {link.a, link.b}) {
      const auto rate = rates.find(end);
      if (rate == rates.end()) continue;
      link.a_to_b = std::min(link.a_to_b, rate->second);
      link.b_to_a = std::min(link.b_to_a, rate->second);
    }
  }
  return Make(pools_, std::move(links), staging_chunk_).value();
}

Status Topology::CheckPools() const {
  if (pools_.size() > kPoolsMax) {
    return Bad(std::to_string(pools_.size()) + " pools, but at most " + std::to_string(kPoolsMax) +
               " can be");
  }
  for (size_t i = 0; i < pools_.size(); ++i) {
    const Pool& pool = pools_[i];
    const uint64_t unit = pool.granularity.count();
    if (unit == 0 || (unit & (unit - 1)) != 0) {
      return Bad("the granularity of " + NameOf(pool) + " must be a power of two, got " +
                 std::to_string(unit));
    }
    if (ToInt(*Find(pool.kind, pool.number)) != i) return Bad(NameOf(pool) + " is named twice");
  }
  return Ok();
}

Status Topology::CheckLinks() const {
  if (links_.size() > std::numeric_limits<uint16_t>::max()) return Bad("too many links");
  for (size_t i = 0; i < links_.size(); ++i) {
    const Link& link = links_[i];
    const std::string name = "link " + std::to_string(i);
    for (const PoolId end : {link.a, link.b}) {
      if (ToInt(end) < pools_.size()) continue;
      return Bad(name + " leads to pool " + std::to_string(ToInt(end)) + ", but there are " +
                 std::to_string(pools_.size()) + " pools");
    }
    if (link.a == link.b) {
      return Bad(name + " joins " + NameOf(pools_[ToInt(link.a)]) + " to itself");
    }
    for (const double rate : {link.a_to_b, link.b_to_a}) {
      if (std::isfinite(rate) && rate > 0) continue;
      return Bad(name + " must move bytes at a positive rate in both directions, got " +
                 std::to_string(rate));
    }
    if (link.latency < Duration{}) return Bad(name + " has a negative latency");
  }
  return Ok();
}

Status Topology::FindRoutes() {
  routes_.resize(pools_.size() * pools_.size());
  // Every link in both directions.
  std::vector<std::pair<Route, uint16_t>> hops;
  for (size_t i = 0; i < links_.size(); ++i) {
    const Link& link = links_[i];
    const LinkId id{static_cast<uint16_t>(i)};
    hops.emplace_back(Over({id, link.a, link.b}, link), link.group);
    hops.emplace_back(Over({id, link.b, link.a}, link), link.group);
  }
  for (const auto& [hop, group] : hops) Consider(hop);
  for (const auto& [first, first_group] : hops) {
    for (const auto& [second, second_group] : hops) {
      if (first.first.to != second.first.from || first.first.from == second.first.to) continue;
      Consider(Through(first, second, first_group != 0 && first_group == second_group));
    }
  }
  for (size_t from = 0; from < pools_.size(); ++from) {
    for (size_t to = 0; to < pools_.size(); ++to) {
      if (from == to || !routes_[from * pools_.size() + to].empty()) continue;
      return Bad("no route of at most two links leads from " + NameOf(pools_[from]) + " to " +
                 NameOf(pools_[to]));
    }
  }
  return Ok();
}

void Topology::Consider(const Route& route) {
  std::vector<Route>& routes =
      RoutesOf(route.first.from, route.second ? route.second->to : route.first.to);
  const auto beats = [&](const Route& known) { return NeverSlower(known, route); };
  if (std::any_of(routes.begin(), routes.end(), beats)) return;
  std::erase_if(routes, [&](const Route& known) { return NeverSlower(route, known); });
  routes.push_back(route);
}

Duration Topology::Time(const Route& route, Bytes bytes) const {
  const auto all = static_cast<double>(bytes.count());
  const auto first = static_cast<double>(std::min(bytes, staging_chunk_).count());
  return route.latency + FromSeconds(all / route.rate + first / route.fill_rate);
}

// Time is linear up to one chunk and linear beyond: three comparisons say all.
bool Topology::NeverSlower(const Route& route, const Route& other) const {
  return route.latency <= other.latency && route.rate >= other.rate &&
         Time(route, staging_chunk_) <= Time(other, staging_chunk_);
}

std::optional<PoolId> Topology::Find(PoolKind kind, uint16_t number) const {
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].kind == kind && pools_[i].number == number) {
      return PoolId{static_cast<uint16_t>(i)};
    }
  }
  return std::nullopt;
}

const Route& Topology::Best(PoolId from, PoolId to, Bytes bytes) const {
  RAVEN_CHECK(ToInt(from) < pools_.size());
  RAVEN_CHECK(ToInt(to) < pools_.size());
  const std::vector<Route>& routes = routes_[ToInt(from) * pools_.size() + ToInt(to)];
  RAVEN_CHECK(!routes.empty());
  return *std::min_element(routes.begin(), routes.end(), [&](const Route& a, const Route& b) {
    return Time(a, bytes) < Time(b, bytes);
  });
}

Duration Topology::Cost(PoolId from, PoolId to, Bytes bytes) const {
  return from == to ? Duration{} : Time(Best(from, to, bytes), bytes);
}

Result<Topology> DevicesAroundHost(const std::vector<Bytes>& capacities, Bytes host_capacity,
                                   Bytes granularity, const std::vector<LinkModel>& links,
                                   const std::vector<Pool>& others,
                                   const std::vector<Link>& other_links) {
  RAVEN_CHECK(capacities.size() == links.size());
  // In the order of their ids.
  std::vector<Pool> pools = {
      {PoolKind::kHost, 0, host_capacity, kExtentAlignment, /*addressable=*/false}};
  std::vector<Link> joins;
  for (uint16_t i = 0; i < capacities.size(); ++i) {
    pools.push_back({PoolKind::kDevice, i, capacities[i], granularity, /*addressable=*/true});
    joins.push_back({.a = kHostPool,
                     .b = PoolOf(DeviceId{i}),
                     .latency = links[i].latency,
                     .a_to_b = links[i].up_bytes_per_second,
                     .b_to_a = links[i].down_bytes_per_second});
  }
  pools.insert(pools.end(), others.begin(), others.end());
  joins.insert(joins.end(), other_links.begin(), other_links.end());
  return Topology::Make(std::move(pools), std::move(joins), kStagingChunk);
}

LinkModel LinkBetween(const Topology& topology, DeviceId device, PoolId pool) {
  const Route& up = topology.Best(pool, PoolOf(device), kLongMove);
  return {up.latency, up.rate, topology.Best(PoolOf(device), pool, kLongMove).rate};
}

}  // namespace ravenstore::core
