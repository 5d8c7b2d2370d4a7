#include "core/pinned.h"

#include <algorithm>

#include "core/check.h"

namespace ravenstore::core {

namespace {

// A slab for small blocks is at most this part of what its user has, so that its unused bytes are
// few in comparison.
constexpr uint64_t kPartOfHeld = 128;
// Only a block of at most this part of such a slab is small: others like it fill the rest. A larger
// block would leave a rest that may never be requested.
constexpr uint64_t kSmallOfSlab = 4;

template <typename Key>
void Subtract(std::map<Key, Bytes>& sums, const Key& key, Bytes bytes) {
  const auto sum = sums.find(key);
  RAVEN_CHECK(sum != sums.end() && sum->second >= bytes);
  sum->second -= bytes;
  if (sum->second == Bytes{0}) sums.erase(sum);
}

}  // namespace

PinnedBooks::PinnedBooks(Options options) : options_(options) {
  for (size_t pool = 0; pool < options_.pools; ++pool) {
    addresses_.emplace_back(options_.range);
    addresses_.back().AddChunk(Bytes{0}, options_.range);
  }
}

PinnedBooks::Holding& PinnedBooks::HoldingOf(TenantId user, uint32_t pool) {
  auto& holding = holdings_[{user, pool}];
  if (holding == nullptr) holding = std::make_unique<Holding>(options_.range);
  return *holding;
}

const PinnedBooks::Holding* PinnedBooks::FindHolding(TenantId user, uint32_t pool) const {
  const auto found = holdings_.find({user, pool});
  return found == holdings_.end() ? nullptr : found->second.get();
}

std::optional<Bytes> PinnedBooks::Carve(TenantId user, PinnedBlockId id, uint32_t pool,
                                        Bytes bytes) {
  RAVEN_CHECK(!Has(id));
  bytes = bytes.RoundUp(kPage);
  const auto holding = holdings_.find({user, pool});
  if (holding == holdings_.end()) return std::nullopt;
  ExtentMap& map = holding->second->map;
  const auto extent = map.Allocate(bytes);
  if (!extent) return std::nullopt;
  blocks_.emplace(id, Block{user, pool, *extent, bytes});
  used_[id.client] += bytes;
  return map.OffsetOf(*extent);
}

bool PinnedBooks::Free(PinnedBlockId id) {
  const auto found = blocks_.find(id);
  if (found == blocks_.end()) return false;
  const Block& block = found->second;
  HoldingOf(block.user, block.pool).map.Free(block.extent);
  Subtract(used_, id.client, block.bytes);
  blocks_.erase(found);
  return true;
}

bool PinnedBooks::CanExtend(const Holding* holding, uint32_t pool, Bytes bytes) const {
  return options_.straddle && holding != nullptr && holding->end > Bytes{0} &&
         addresses_[pool].FreeFrom(holding->end) >= bytes;
}

Bytes PinnedBooks::PlanSlab(TenantId user, uint32_t pool, Bytes bytes) const {
  bytes = bytes.RoundUp(kPage);
  const Bytes part = std::min(
      Bytes(Held(user).count() / kPartOfHeld).RoundDown(options_.granularity), options_.slab);
  const auto whole = [&](Bytes need) {
    need = need.RoundUp(options_.granularity);
    return bytes * kSmallOfSlab <= part ? std::max(need, part) : need;
  };
  const Holding* holding = FindHolding(user, pool);
  if (holding != nullptr) {
    // Behind its last slab the new one goes on with what is free there.
    const Bytes size = whole(Minus(bytes, holding->map.FreeBefore(holding->end)));
    if (CanExtend(holding, pool, size)) return size;
  }
  return whole(bytes);
}

std::optional<PinnedBooks::Slab> PinnedBooks::Add(TenantId user, uint32_t pool, Bytes bytes) {
  Holding& holding = HoldingOf(user, pool);
  ExtentMap& addresses = addresses_[pool];
  std::optional<ExtentMap::Block> place;
  if (CanExtend(&holding, pool, bytes)) {
    place = addresses.AllocateAt(holding.end, bytes);
  } else if (options_.straddle) {
    // Apart from all others, so that the next may be its neighbour.
    place = addresses.AllocateInMiddle(bytes, options_.granularity);
  }
  // With a gap behind it: no block may begin here and end in another slab.
  if (!place) place = addresses.Allocate(bytes + options_.granularity);
  if (!place) return std::nullopt;
  const Slab slab{{pool, addresses.OffsetOf(*place)}, bytes};
  holding.end = slab.id.offset + bytes;
  slabs_.emplace(slab.id, Owned{.user = user, .bytes = bytes, .addresses = *place, .notified = {}});
  held_[user] += bytes;
  return slab;
}

void PinnedBooks::Ready(PinnedSlabId id) {
  Owned& slab = slabs_.at(id);
  slab.ready = true;
  HoldingOf(slab.user, id.pool).map.AddChunk(id.offset, slab.bytes);
}

void PinnedBooks::Failed(PinnedSlabId id) {
  Forget(slabs_.find(id));
}

void PinnedBooks::Forget(std::map<PinnedSlabId, Owned>::iterator found) {
  const PinnedSlabId& id = found->first;
  const Owned& slab = found->second;
  Holding& holding = HoldingOf(slab.user, id.pool);
  if (holding.end == id.offset + slab.bytes) holding.end = Bytes{0};
  addresses_[id.pool].Free(slab.addresses);
  Subtract(held_, slab.user, slab.bytes);
  const bool last = std::none_of(slabs_.begin(), slabs_.end(), [&](const auto& other) {
    return &other != &*found && other.first.pool == id.pool && other.second.user == slab.user;
  });
  if (last) holdings_.erase({slab.user, id.pool});
  slabs_.erase(found);
}

std::vector<PinnedBooks::Slab> PinnedBooks::AddNotified(ClientId client, uint32_t pool,
                                                        Bytes offset, Bytes bytes) {
  std::vector<Slab> news;
  auto slab = slabs_.upper_bound({pool, offset});
  RAVEN_CHECK(slab != slabs_.begin());
  for (--slab; slab != slabs_.end() && slab->first.pool == pool; ++slab) {
    if (slab->first.offset >= offset + bytes) break;
    if (slab->second.notified.insert(client).second)
      news.push_back({slab->first, slab->second.bytes});
  }
  return news;
}

bool PinnedBooks::RemoveNotified(ClientId client, PinnedSlabId slab) {
  const auto found = slabs_.find(slab);
  return found != slabs_.end() && found->second.notified.erase(client) > 0 && IsUnmapped(slab);
}

std::vector<PinnedBooks::Slab> PinnedBooks::Idle(TenantId user, bool of_others) const {
  std::vector<Slab> idle;
  for (const auto& [id, slab] : slabs_) {
    if ((slab.user == user) == of_others || !slab.ready || slab.releasing) continue;
    if (FindHolding(slab.user, id.pool)->map.IsFree(id.offset, slab.bytes))
      idle.push_back({id, slab.bytes});
  }
  return idle;
}

std::vector<ClientId> PinnedBooks::Release(PinnedSlabId id) {
  Owned& slab = slabs_.at(id);
  RAVEN_CHECK(slab.ready && !slab.releasing);
  ExtentMap& map = HoldingOf(slab.user, id.pool).map;
  RAVEN_CHECK(map.IsFree(id.offset, slab.bytes));
  map.CloseChunk(id.offset, slab.bytes);
  slab.releasing = true;
  ++releasing_;
  return {slab.notified.begin(), slab.notified.end()};
}

bool PinnedBooks::Unmapped(PinnedSlabId id, ClientId client) {
  const auto slab = slabs_.find(id);
  return slab != slabs_.end() && slab->second.releasing && slab->second.notified.erase(client) > 0;
}

bool PinnedBooks::IsUnmapped(PinnedSlabId id) const {
  const auto slab = slabs_.find(id);
  return slab != slabs_.end() && slab->second.releasing && slab->second.notified.empty();
}

void PinnedBooks::Removed(PinnedSlabId id) {
  const auto slab = slabs_.find(id);
  RAVEN_CHECK(slab != slabs_.end() && slab->second.releasing && slab->second.notified.empty());
  HoldingOf(slab->second.user, id.pool).map.RemoveChunk(id.offset, slab->second.bytes);
  --releasing_;
  Forget(slab);
}

void PinnedBooks::NotRemoved(PinnedSlabId id) {
  Owned& slab = slabs_.at(id);
  RAVEN_CHECK(slab.releasing && !slab.stuck && slab.notified.empty());
  slab.stuck = true;
  --releasing_;
}

std::vector<PinnedSlabId> PinnedBooks::RemoveClient(ClientId client) {
  for (auto block = blocks_.lower_bound({client, 0});
       block != blocks_.end() && block->first.client == client;) {
    const PinnedBlockId id = (block++)->first;
    Free(id);
  }
  std::vector<PinnedSlabId> unmapped;
  for (auto& [id, slab] : slabs_) {
    if (slab.notified.erase(client) > 0 && slab.releasing && slab.notified.empty())
      unmapped.push_back(id);
  }
  return unmapped;
}

Bytes PinnedBooks::Held(TenantId user) const {
  const auto held = held_.find(user);
  return held == held_.end() ? Bytes{0} : held->second;
}

Bytes PinnedBooks::HeldByAll() const {
  Bytes all;
  for (const auto& [user, held] : held_) all += held;
  return all;
}

Bytes PinnedBooks::Used(ClientId client) const {
  const auto used = used_.find(client);
  return used == used_.end() ? Bytes{0} : used->second;
}

void PinnedBooks::CheckInvariants() const {
  std::map<HoldingKey, Bytes> ready;
  std::map<TenantId, Bytes> held;
  size_t releasing = 0;
  for (const auto& [id, slab] : slabs_) {
    held[slab.user] += slab.bytes;
    // What is being released is no memory to cut blocks from.
    if (slab.ready && !slab.releasing) ready[{slab.user, id.pool}] += slab.bytes;
    if (slab.releasing && !slab.stuck) ++releasing;
  }
  RAVEN_CHECK(held == held_);
  RAVEN_CHECK(releasing == releasing_);
  std::map<HoldingKey, Bytes> blocks;
  std::map<ClientId, Bytes> used;
  for (const auto& [id, block] : blocks_) {
    used[id.client] += block.bytes;
    blocks[{block.user, block.pool}] += block.bytes;
  }
  RAVEN_CHECK(used == used_);
  for (const auto& [key, holding] : holdings_) {
    holding->map.CheckInvariants();
    RAVEN_CHECK(holding->map.held() == ready[key]);
    RAVEN_CHECK(holding->map.used() == blocks[key]);
  }
  for (const ExtentMap& addresses : addresses_) addresses.CheckInvariants();
}

}  // namespace ravenstore::core
