#include "core/away_pools.h"

#include <algorithm>
#include <utility>

namespace ravenstore::core {

bool AwayPools::Member::IsLost(Block block) const {
  const Bytes begin = OffsetOf(block);
  return std::ranges::any_of(taken, [&](const auto& one) {
    const auto& [offset, how] = one;
    return how == Taken::kLost && offset < begin + SizeOf(block) && begin < offset + chunk;
  });
}

AwayPools::AwayPools(const Topology* topology, size_t devices, Bytes host_capacity)
    : topology_(topology), harvested_(devices) {
  pools_.try_emplace(kHostPool, host_capacity);
  for (size_t i = 1 + devices; i < topology->pools().size(); ++i) {
    const Pool& kind = topology->pools()[i];
    const Bytes unit = std::max(kind.granularity, kExtentAlignment);
    const Bytes capacity = kind.capacity.RoundDown(std::max(unit, kind.Piece()));
    Member& pool =
        pools_.try_emplace(PoolId{static_cast<uint16_t>(i)}, capacity, unit).first->second;
    pool.chunk = kind.chunk;
    pool.covered = kind.covered;
    if (!pool.comes_and_goes()) {
      pool.Grown(pool.Grow(capacity));
    } else if (kind.kind == PoolKind::kPeer) {
      pool.owner = DeviceId{kind.number};
      harvested_[kind.number] = PoolId{static_cast<uint16_t>(i)};
    }
  }
  links_.resize(devices);
  RatesChanged();
}

void AwayPools::RatesChanged() {
  for (uint16_t i = 0; i < links_.size(); ++i) links_[i] = MakeLinks(DeviceId{i});
}

AwayLinks AwayPools::MakeLinks(DeviceId device) const {
  AwayLinks links;
  for (const auto& [id, pool] : pools_)
    links.pools.push_back({id, LinkBetween(*topology_, device, id), Bytes{}});
  std::stable_sort(links.pools.begin(), links.pools.end(), [](const auto& a, const auto& b) {
    return a.link.up_bytes_per_second > b.link.up_bytes_per_second;
  });
  return links;
}

std::vector<PoolId> AwayPools::OtherIds() const {
  std::vector<PoolId> ids;
  for (const auto& [id, pool] : pools_) {
    if (id != kHostPool) ids.push_back(id);
  }
  return ids;
}

std::vector<Bytes> AwayPools::OtherCapacities() const {
  std::vector<Bytes> capacities;
  for (const PoolId id : OtherIds()) capacities.push_back(pools_.at(id).range());
  return capacities;
}

Bytes AwayPools::RoomIn(PoolId id, Bytes host_most) const {
  const Member& pool = pools_.at(id);
  if (pool.failed) return Bytes{0};
  const Bytes most = id == kHostPool ? host_most : Minus(pool.most, pool.claimed);
  const Bytes growth = Minus(most, id == kHostPool ? pool.size() : pool.committed());
  return std::max(pool.LargestHole(), growth);
}

AwayLinks AwayPools::LinksOf(DeviceId device, Bytes host_most) const {
  AwayLinks links = links_[ToInt(device)];
  for (AwayLinks::Pool& pool : links.pools) pool.room = RoomIn(pool.id, host_most);
  return links;
}

// What a tensor there is worth less than in the next pool that has room for it: so much others lose
// whom it keeps from there.
Duration AwayPools::PriceOfRoom(const Departure& departure, PoolId pool) const {
  const auto& [device, size, leaving, flights, now] = departure;
  if (now >= pools_.at(pool).scarce_until) return Duration{0};
  const PoolId home = PoolOf(device);
  const Duration here = topology_->Cost(pool, home, size);
  Duration next = Duration::max();
  for (const auto& [id, other] : pools_) {
    const Duration there = topology_->Cost(id, home, size);
    if (!other.failed && there > here && other.LargestHole() >= size) next = std::min(next, there);
  }
  return next == Duration::max() ? Duration{0} : next - here;
}

Duration AwayPools::PlacingCost(const Departure& departure, PoolId pool) const {
  const auto& [device, size, leaving, flights, now] = departure;
  const PoolId home = PoolOf(device);
  // What is in flight goes first; for the copy of one that leaves ahead of need nobody waits.
  const Bytes queued = flights[ToInt(pool)][static_cast<size_t>(CopyLedger::Way::kOut)].bytes;
  const Bytes waited = leaving == Leaving::kNow ? queued + size : queued;
  return topology_->Cost(home, pool, waited) + topology_->Cost(pool, home, size);
}

std::vector<AwayPools::Choice> AwayPools::For(const Departure& departure) const {
  std::vector<Choice> choices;
  for (const auto& [id, pool] : pools_) {
    if (pool.failed) continue;
    choices.push_back({PlacingCost(departure, id), PriceOfRoom(departure, id), id});
  }
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return std::pair(a.cost + a.price, a.pool) < std::pair(b.cost + b.price, b.pool);
  });
  return choices;
}

PoolId AwayPools::Next(const Departure& departure, Bytes host_most) const {
  const std::vector<Choice> choices = For(departure);
  const auto next = std::find_if(choices.begin(), choices.end(), [&](const Choice& choice) {
    return RoomIn(choice.pool, host_most) >= departure.size;
  });
  return next == choices.end() ? choices.front().pool : next->pool;
}

}  // namespace ravenstore::core
