#include "core/reclaimer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace ravenstore::core {

namespace {
// Blocks of an arena's slabs that are looked at in one search.
constexpr size_t kBlocksTried = 16384;
constexpr QuotaTree::Rank kEmptyGoesFirst{TenantPriority::kLow,
                                          -std::numeric_limits<double>::infinity()};

Bytes EndOf(const Range& range) {
  return range.first + range.second;
}

bool Overlap(const Range& a, const Range& b) {
  return a.first < EndOf(b) && b.first < EndOf(a);
}
}  // namespace

void Reclaimer::Find(const Arena& arena, const Range& spared, Which which,
                     std::optional<double> weight, Emptyings* found) {
  size_t blocks = 0;
  for (const Range& slab : arena.slabs) {
    if (blocks > kBlocksTried) break;
    if (Overlap(slab, spared)) continue;
    Emptying emptying{arena.client, arena.tenant, slab};
    bool can = true;
    for (ExtentMap::Block block = arena.map.At(slab.first);
         block != ExtentMap::kNone && arena.map.OffsetOf(block) < EndOf(slab);
         block = arena.map.After(block), ++blocks) {
      if (arena.map.KindOf(block) != ExtentMap::Kind::kUsed) continue;
      const TensorRow& tensor = (*catalog_)[arena.map.OwnerOf(block)];
      can = which == Which::kAll && EvictionIndex::CanLeave(tensor);
      if (!can) break;
      emptying.rows.push_back(Catalog::RowOf(tensor.id));
      const double cost = weight
                              ? *weight * arena.index.UnweightedCost(tensor, arena.now, arena.links)
                              : arena.index.EvictionCost(tensor, arena.now, arena.links);
      emptying.cost += cost;
      if (arena.map.OffsetOf(block) < slab.first) emptying.cost_before = cost;
      if (arena.map.OffsetOf(block) + arena.map.SizeOf(block) > EndOf(slab))
        emptying.cost_after = cost;
    }
    if (can) found->push_back(std::move(emptying));
  }
  searched_ += blocks;
}

void Reclaimer::KeepShares(const QuotaTree& quota, const Asker& asker, Emptyings* slabs) {
  if (!quota.HasClaims(asker.device)) return;
  std::stable_sort(slabs->begin(), slabs->end(),
                   [](const Emptying& a, const Emptying& b) { return a.density() < b.density(); });
  struct Giving {
    Bytes most;
    Bytes given;
  };
  std::map<TenantId, Giving> others;
  std::erase_if(*slabs, [&](Emptying& one) {
    Bytes given;  // of its tenant, before
    const bool is_free = one.rows.empty() && asker.claim == QuotaTree::Claim::kCost;
    if (one.tenant != asker.tenant && !is_free) {
      const auto [other, is_new] = others.try_emplace(one.tenant);
      Giving& giving = other->second;
      if (is_new) {
        giving.most = quota.Yields(one.tenant, asker.client, asker.device, asker.need, asker.claim);
      }
      given = giving.given;
      if (given + one.slab.second > giving.most) return true;
      giving.given += one.slab.second;
    }
    if (quota.HasRanks())
      one.rank = one.rows.empty() ? kEmptyGoesFirst : quota.RankOf(one.tenant, asker.device, given);
    return false;
  });
}

Reclaimer::Proposal Reclaimer::Cheapest(Emptyings slabs, Bytes wanted) {
  Proposal proposal;
  auto rest = slabs.begin();
  for (; rest != slabs.end() && proposal.bytes < wanted; ++rest) {
    std::iter_swap(rest, std::min_element(rest, slabs.end(), [](const auto& a, const auto& b) {
                     return a.GoesBefore(b);
                   }));
    proposal.bytes += rest->slab.second;
    proposal.largest = std::max(proposal.largest, rest->slab.second);
    proposal.cost += rest->cost;
    // What lies in two slabs leaves once.
    for (auto other = rest + 1; other != slabs.end(); ++other) {
      if (other->client != rest->client) continue;
      if (other->slab.first == EndOf(rest->slab))
        other->cost -= std::exchange(other->cost_before, 0);
      if (EndOf(other->slab) == rest->slab.first)
        other->cost -= std::exchange(other->cost_after, 0);
    }
  }
  slabs.erase(rest, slabs.end());
  proposal.slabs = std::move(slabs);
  return proposal;
}

bool Reclaimer::IsSettling(const Arena& arena, const Range& slab) const {
  for (ExtentMap::Block block = arena.map.At(slab.first);
       block != ExtentMap::kNone && arena.map.OffsetOf(block) < EndOf(slab);
       block = arena.map.After(block)) {
    if (arena.map.KindOf(block) != ExtentMap::Kind::kUsed) continue;
    const TensorRow& tensor = (*catalog_)[arena.map.OwnerOf(block)];
    if (!tensor.in_use && !EvictionIndex::CanLeave(tensor)) return true;
  }
  return false;
}

Bytes Reclaimer::TailOf(const Arena& arena, const Range& slab, std::vector<uint32_t>* rows) const {
  ExtentMap::Block block = arena.map.At(EndOf(slab) - Bytes{1});
  for (;; block = arena.map.Before(block)) {
    const bool used = arena.map.KindOf(block) == ExtentMap::Kind::kUsed;
    const bool can = used ? EvictionIndex::CanLeave((*catalog_)[arena.map.OwnerOf(block)])
                          : arena.map.KindOf(block) == ExtentMap::Kind::kFree;
    if (!can) return Minus(EndOf(slab), arena.map.OffsetOf(block) + arena.map.SizeOf(block));
    if (used) rows->push_back(arena.map.OwnerOf(block));
  }
}

Reclaimer::Compaction Reclaimer::Compact(const Arena& arena, Bytes need, Bytes more) {
  Compaction compaction;
  Find(arena, {}, Which::kAll, {}, &compaction.slabs);
  std::vector<Range> staying = arena.slabs;
  for (const Emptying& one : compaction.slabs) {
    more += one.slab.second;
    std::erase(staying, one.slab);
  }
  std::sort(staying.begin(), staying.end());
  for (const Range& slab : staying) {
    compaction.staying += slab.second;
    compaction.settling = compaction.settling || IsSettling(arena, slab);
  }
  // Behind what cannot leave, in the slab that stays for it and in those that come again.
  compaction.reach = more;
  for (size_t i = 0; i < staying.size(); ++i) {
    const Bytes next = i + 1 < staying.size() ? staying[i + 1].first : arena.map.range();
    std::vector<uint32_t> rows;
    const Bytes reach = TailOf(arena, staying[i], &rows) + std::min(more, next - EndOf(staying[i]));
    if (reach < std::max(need, compaction.reach)) continue;
    compaction.reach = reach;
    compaction.rows = std::move(rows);
  }
  return compaction;
}

}  // namespace ravenstore::core
