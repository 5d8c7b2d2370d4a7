// Which slabs are emptied and given back, and for whom.
#include <algorithm>

#include "core/planner_state.h"

namespace ravenstore::core {

namespace {
constexpr Duration kShrinkRetry = std::chrono::milliseconds(4);
// A client lets go of a slab within a millisecond or two. Who does not do it for so long is
// stopped.
constexpr Duration kLetGoWithin = std::chrono::milliseconds(200);
// A request does not wait for that: when so long has passed it asks others too, first for as much
// again, then for twice as much ..., so often at most.
constexpr Duration kLateAfter = std::chrono::milliseconds(10);
constexpr uint32_t kAskedMoreMost = 4;
// Other arenas whose slabs are looked at for ones that can be emptied.
constexpr size_t kGiversTried = 8;
// Blocks of slabs that are looked at in one search.
constexpr size_t kBlocksTried = 16384;
// Tensors that leave at once for a lowered limit, unless one slab holds more.
constexpr size_t kMostShrunkAtOnce = 4096;

bool Overlap(const Range& a, const Range& b) {
  return a.first < b.first + b.second && b.first < a.first + a.second;
}
}  // namespace

std::vector<ClientArena*> Planner::State::SharersWith(const ClientArena& arena,
                                                      Limit binding) const {
  std::vector<ClientArena*> sharers;
  if (binding == Limit::kClient) return sharers;
  const TenantId tenant = clients_.at(arena.client)->tenant;
  for (const auto& [id, client] : clients_) {
    ClientArena* other = client->arenas[ToInt(arena.device)].get();
    if (other == nullptr || other == &arena) continue;
    // A full tenant can only be helped by its own; a full device by anybody.
    if (binding == Limit::kPool || client->tenant == tenant) sharers.push_back(other);
  }
  return sharers;
}

std::vector<ClientArena*> Planner::State::GiversTo(const ClientArena& arena, Limit binding) const {
  std::vector<ClientArena*> givers;
  for (ClientArena* other : SharersWith(arena, binding)) {
    // What a guarantee takes it takes from whoever holds more than his, whatever that one waits
    // for.
    if (!irrevocable_ && requests_.Waiting(*other) > 0 && !other->waits_for_peak) {
      // Of two that wait the older may take the other's slabs; both ways they would swap for ever.
      if (requests_.IsOlder(*other, arena)) continue;
      // A copy that room is being made for is not redundant.
      if (other->adding > Bytes{0} || other->leaving > 0) continue;
    }
    // A client that did not let go of the last one would keep the next, too.
    if (UsageOf(*other).overdue > Bytes{0} || IsLate(*other)) continue;
    // Where all is in use there is nothing to give.
    if (other->index.size() > 0 || other->map.used() < other->map.held()) givers.push_back(other);
  }
  std::stable_sort(givers.begin(), givers.end(),
                   [this](const ClientArena* a, const ClientArena* b) {
                     return UsageOf(*a).held > UsageOf(*b).held;
                   });
  givers.resize(std::min(givers.size(), kGiversTried));
  return givers;
}

void Planner::State::FindEmptyable(ClientArena& arena, const Range& spared, Which which,
                                   std::vector<Emptying>* found, std::optional<double> weight) {
  const Tick virtual_time = VirtualTime(arena);
  size_t blocks = 0;
  for (const Range& slab : arena.slabs) {
    if (blocks > kBlocksTried) break;
    if (Overlap(slab, spared)) continue;
    Emptying emptying{&arena, slab};
    bool can = true;
    for (ExtentMap::Block block = arena.map.At(slab.first);
         block != ExtentMap::kNone && arena.map.OffsetOf(block) < slab.first + slab.second;
         block = arena.map.After(block), ++blocks) {
      if (arena.map.KindOf(block) != ExtentMap::Kind::kUsed) continue;
      const TensorRow& tensor = catalog_[arena.map.OwnerOf(block)];
      can = which == Which::kAll && EvictionIndex::CanLeave(tensor);
      if (!can) break;
      emptying.rows.push_back(Catalog::RowOf(tensor.id));
      const double cost =
          weight ? *weight * arena.index.UnweightedCost(tensor, virtual_time, options_.link)
                 : arena.index.EvictionCost(tensor, virtual_time, options_.link);
      emptying.cost += cost;
      if (arena.map.OffsetOf(block) < slab.first) emptying.cost_before = cost;
      if (arena.map.OffsetOf(block) + arena.map.SizeOf(block) > slab.first + slab.second)
        emptying.cost_after = cost;
    }
    if (can) found->push_back(std::move(emptying));
  }
  slabs_searched_ += blocks;
}

// Idle memory may be lent beyond a share because it can be taken back, and for that it needs room
// on the host. What only fills a hole lends nothing more.
bool Planner::State::LacksCover(const ClientArena& arena, Bytes more) const {
  if (!quota_.HasGuarantees(arena.pool()) || arena.map.LargestHole() >= more) return false;
  if (quota_.IsWithinGuarantee(arena.client, arena.pool(), more)) return false;
  if (quota_.IsKeptTaken()) return true;
  const Bytes lent = quota_.Lent(arena.client, arena.pool(), more);
  if (lent == Bytes{0}) return false;
  Bytes away = quota_.Of(kHostPool).pinned;
  for (const auto& [id, client] : clients_) {
    for (const auto& other : client->arenas) {
      if (other != nullptr) away += Minus(other->live, other->map.used());
    }
  }
  // It comes back in whole slabs.
  return away + lent + LargestSlab(arena) > quota_.Lendable();
}

void Planner::State::KeepGuarantees(const ClientArena& asking, std::vector<Emptying>* slabs) const {
  if (!quota_.HasGuarantees(asking.pool())) return;
  const TenantId own = clients_.at(asking.client)->tenant;
  std::stable_sort(slabs->begin(), slabs->end(),
                   [](const Emptying& a, const Emptying& b) { return a.density() < b.density(); });
  std::map<TenantId, Bytes> beyond;  // its guarantee, by tenant
  std::erase_if(*slabs, [&](const Emptying& one) {
    const TenantId id = clients_.at(one.arena->client)->tenant;
    if (id == own || one.rows.empty()) return false;
    const auto [left, is_new] = beyond.try_emplace(id);
    if (is_new) left->second = quota_.BeyondGuarantee(id, asking.pool());
    if (one.slab.second > left->second) return true;
    left->second -= one.slab.second;
    return false;
  });
}

std::vector<Planner::State::Emptying> Planner::State::Cheapest(std::vector<Emptying> slabs,
                                                               Bytes wanted) {
  const auto end = [](const Emptying& one) { return one.slab.first + one.slab.second; };
  Bytes sum;
  auto rest = slabs.begin();
  for (; rest != slabs.end() && sum < wanted; ++rest) {
    std::iter_swap(rest, std::min_element(rest, slabs.end(), [&](const auto& a, const auto& b) {
                     return a.density() < b.density();
                   }));
    sum += rest->slab.second;
    // What lies in two slabs leaves once.
    for (auto other = rest + 1; other != slabs.end(); ++other) {
      if (other->arena != rest->arena) continue;
      if (other->slab.first == end(*rest)) other->cost -= std::exchange(other->cost_before, 0);
      if (end(*other) == rest->slab.first) other->cost -= std::exchange(other->cost_after, 0);
    }
  }
  slabs.erase(rest, slabs.end());
  return slabs;
}

bool Planner::State::Drain(const std::vector<Emptying>& chosen) {
  bool any = false;
  for (size_t i = 0; i < chosen.size();) {
    ClientArena& arena = *chosen[i].arena;
    std::vector<Range> slabs;
    std::vector<uint32_t> rows;
    for (; i < chosen.size() && chosen[i].arena == &arena; ++i) {
      slabs.push_back(chosen[i].slab);
      rows.insert(rows.end(), chosen[i].rows.begin(), chosen[i].rows.end());
    }
    any |= Drain(arena, slabs, std::move(rows));
  }
  return any;
}

bool Planner::State::Drain(ClientArena& arena, const std::vector<Range>& slabs,
                           std::vector<uint32_t> rows) {
  std::sort(rows.begin(), rows.end());  // one that lies in two slabs comes twice
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  if (!rows.empty() && !EvictAll(arena, rows, RedundantCopies::kMayDrop)) return false;
  for (const uint32_t row : rows) LeaveSlab(arena, catalog_[row]);
  for (const Range& slab : slabs) {
    std::erase(arena.slabs, slab);
    arena.map.CloseChunk(slab.first, slab.second);
    arena.draining.push_back(slab);
    quota_.BeginReclaiming(arena.client, arena.pool(), slab.second);
  }
  EndDraining(arena);
  return true;
}

bool Planner::State::LeaveToLater(DeviceId id, bool some_go, std::vector<Emptying>* slabs) const {
  const Device& device = devices_[ToInt(id)];
  Bytes out = device.out;
  uint32_t outs = device.outs;
  std::set<uint32_t> leaving;  // a tensor that lies in several slabs is copied once
  return std::erase_if(*slabs, [&](const Emptying& one) {
           Bytes copied;
           for (const uint32_t row : one.rows) {
             if (!leaving.contains(row) && !CanDrop(catalog_[row])) copied += catalog_[row].size;
           }
           if (copied == Bytes{0}) return false;
           if (std::exchange(some_go, true) && !UnderCopyLimit(out, outs, copied)) return true;
           leaving.insert(one.rows.begin(), one.rows.end());
           out += copied;
           ++outs;
           return false;
         }) > 0;
}

std::optional<Planner::State::Lack> Planner::State::LackFor(const ClientArena& arena,
                                                            Bytes need) const {
  const auto place = PlaceForSlab(arena, need);
  if (!place) return std::nullopt;
  const Bytes coming = RoomFor(arena, Coming::kIsThere) + arena.adding;
  const Bytes missing = Minus(place->missing, coming);
  return Lack{*place, BindingFor(arena, place->missing), missing};
}

bool Planner::State::TakeSlabsFor(ClientArena& arena, Bytes need, const SlabCostLimit& cost_limit,
                                  Take take) {
  if (now_ < arena.backoff_until) return false;
  const auto lack = LackFor(arena, need);
  if (!lack) return false;
  const auto& [place, binding, wanted] = *lack;
  const Bytes reclaiming = ReclaimingOf(arena, binding);
  const Which which = cost_limit.at_most > 0 ? Which::kAll : Which::kEmpty;
  if (wanted == Bytes{0}) {
    if (WaitsForLate(arena, binding)) AskMore(arena, *lack, which, cost_limit);
    return reclaiming + arena.adding > Bytes{0};  // help is under way
  }
  std::vector<Emptying> slabs;
  if (take == Take::kEnough) FindEmptyable(arena, place.reach, which, &slabs);
  const TenantId own = clients_.at(arena.client)->tenant;
  for (ClientArena* giver : GiversTo(arena, binding)) {
    if (take == Take::kOtherTenants && clients_.at(giver->client)->tenant == own) continue;
    FindEmptyable(*giver, {}, which, &slabs, cost_limit.weight);
  }
  KeepGuarantees(arena, &slabs);
  // Of what is guaranteed some is taken in any case: larger slabs may hold more than the host has
  // room for.
  const bool again = take == Take::kOtherTenants;
  while (!slabs.empty()) {
    std::vector<Emptying> chosen = Cheapest(slabs, wanted);
    Bytes sum;
    Bytes largest;
    double cost_of_all = 0;
    for (const Emptying& one : chosen) {
      sum += one.slab.second;
      largest = std::max(largest, one.slab.second);
      cost_of_all += one.cost;
    }
    if (cost_of_all > cost_limit.at_most || (sum < wanted && take != Take::kSome)) return false;
    if (take != Take::kSome) {
      const bool more = LeaveToLater(arena.device, reclaiming > Bytes{0}, &chosen);
      arena.taking = more && requests_.Waiting(arena) > 0;
      taking_held_ |= arena.taking;
      if (chosen.empty()) return true;
    }
    std::stable_sort(chosen.begin(), chosen.end(), [](const Emptying& a, const Emptying& b) {
      return InOrder()(a.arena, b.arena);
    });
    if (Drain(chosen)) {
      if (requests_.Waiting(arena) > 0) {
        quota_.Reserve(arena.client, arena.pool(),
                       {place.missing, requests_.First(arena).id, irrevocable_});
      }
      arena.asked_more = 0;
      for (const Emptying& one : chosen) arena.relocating |= one.arena == &arena;
      return true;
    }
    if (!again) return false;
    std::erase_if(slabs, [&](const Emptying& one) { return one.slab.second >= largest; });
  }
  return false;
}

bool Planner::State::IsLate(const ClientArena& arena) const {
  return std::any_of(arena.removing.begin(), arena.removing.end(), [this](const auto& slab) {
    return now_ >= slab.second.until - kLetGoWithin + kLateAfter;
  });
}

bool Planner::State::WaitsForLate(ClientArena& arena, Limit binding) {
  if (requests_.Waiting(arena) == 0 || arena.asked_more == kAskedMoreMost) return false;
  if (now_ < arena.late_at) return false;  // those who were asked last may let go yet
  const std::vector<ClientArena*> sharers = SharersWith(arena, binding);
  return std::any_of(sharers.begin(), sharers.end(),
                     [this](const ClientArena* other) { return IsLate(*other); });
}

void Planner::State::AskMore(ClientArena& arena, const Lack& lack, Which which,
                             const SlabCostLimit& cost_limit) {
  const Bytes need = lack.place.missing;
  std::vector<Emptying> slabs;
  // Of none more than would do, so that they are many clients.
  for (ClientArena* giver : GiversTo(arena, lack.binding)) {
    std::vector<Emptying> of_one;
    FindEmptyable(*giver, {}, which, &of_one, cost_limit.weight);
    for (Emptying& one : Cheapest(std::move(of_one), need)) slabs.push_back(std::move(one));
  }
  KeepGuarantees(arena, &slabs);
  std::vector<Emptying> chosen = Cheapest(std::move(slabs), need * (1u << arena.asked_more));
  double cost = 0;
  for (const Emptying& one : chosen) cost += one.cost;
  if (chosen.empty() || cost > cost_limit.at_most) return;
  std::stable_sort(chosen.begin(), chosen.end(), [](const Emptying& a, const Emptying& b) {
    return InOrder()(a.arena, b.arena);
  });
  if (!Drain(chosen)) return;
  ++arena.asked_more;
  arena.late_at = now_ + kLateAfter;
}

Bytes Planner::State::TailOf(const ClientArena& arena, const Range& slab,
                             std::vector<uint32_t>* rows) const {
  const Bytes end = slab.first + slab.second;
  ExtentMap::Block block = arena.map.At(end - Bytes{1});
  for (;; block = arena.map.Before(block)) {
    const bool used = arena.map.KindOf(block) == ExtentMap::Kind::kUsed;
    const bool can = used ? EvictionIndex::CanLeave(catalog_[arena.map.OwnerOf(block)])
                          : arena.map.KindOf(block) == ExtentMap::Kind::kFree;
    if (!can) return Minus(end, arena.map.OffsetOf(block) + arena.map.SizeOf(block));
    if (used) rows->push_back(arena.map.OwnerOf(block));
  }
}

bool Planner::State::EmptySlabsFor(ClientArena& arena, Bytes need) {
  std::vector<Emptying> chosen;
  FindEmptyable(arena, {}, Which::kAll, &chosen);
  Bytes sum = RoomFor(arena).RoundDown(options_.granularity);
  std::vector<Range> staying = arena.slabs;
  for (const Emptying& one : chosen) {
    sum += one.slab.second;
    std::erase(staying, one.slab);
  }
  std::sort(staying.begin(), staying.end());
  arena.kept = {requests_.Waiting(arena) == 0 ? 0 : requests_.First(arena).id, Bytes{0}};
  for (const Range& slab : staying) arena.kept.second += slab.second;
  // Behind what cannot leave, in the slab that stays for it and in those that come again.
  Bytes most = sum;
  std::vector<uint32_t> rows;
  for (size_t i = 0; i < staying.size(); ++i) {
    const Bytes end = staying[i].first + staying[i].second;
    const Bytes next = i + 1 < staying.size() ? staying[i + 1].first : arena.map.range();
    std::vector<uint32_t> leaving;
    const Bytes tail = TailOf(arena, staying[i], &leaving);
    if (tail + std::min(sum, next - end) < std::max(need, most)) continue;
    most = tail + std::min(sum, next - end);
    rows = std::move(leaving);
  }
  if (most < need || !Drain(chosen)) return false;
  std::erase_if(rows, [&](uint32_t row) { return !EvictionIndex::CanLeave(catalog_[row]); });
  if (!rows.empty()) EvictAll(arena, rows, RedundantCopies::kMayDrop);
  return arena.relocating = true;
}

bool Planner::State::GiveBackFreeSlab(ClientArena& arena) {
  for (size_t i = 0; i < arena.slabs.size(); ++i) {
    if (GiveBack(arena, arena.slabs[i])) return true;
  }
  return false;
}

bool Planner::State::GiveBack(ClientArena& arena, Range slab) {
  return arena.map.IsFree(slab.first, slab.second) && Drain(arena, {slab}, {});
}

void Planner::State::EndDraining(ClientArena& arena) {
  // One by one, as they come free: the request that waits for them sees progress.
  std::erase_if(arena.draining, [&](const Range& slab) {
    const auto [offset, size] = slab;
    if (arena.map.IsRetired(offset, size)) {
      arena.removing[offset] = {size, now_ + kLetGoWithin};
      late_.Arm({arena, offset}, now_ + kLateAfter);
      overdue_.Arm({arena, offset}, now_ + kLetGoWithin);
      plan_->push_back(RemoveSlab{arena.client, arena.device, offset});
      return true;
    }
    ExtentMap::Block block = arena.map.At(offset);
    if (arena.map.KindOf(block) != ExtentMap::Kind::kUsed) block = arena.map.After(block);
    const TensorRow& tensor = catalog_[arena.map.OwnerOf(block)];
    if (tensor.residency == Residency::kLeaving ||
        tensor.residency == Residency::kLeavingIrrevocably || tensor.leaves)
      return false;
    // A get has rescued what lived here: then the request that wants the slab tries again.
    arena.map.OpenChunk(offset, size);
    arena.slabs.push_back(slab);
    quota_.EndReclaiming(arena.client, arena.pool(), size);
    TouchWaiting();
    return true;
  });
  if (UsageOf(arena).reclaiming == Bytes{0}) arena.relocating = false;
}

void Planner::State::NoteOverdue(ClientArena& arena) {
  for (auto& [offset, slab] : arena.removing) {
    if (slab.overdue || now_ < slab.until) continue;
    slab.overdue = true;
    quota_.BeginOverdue(arena.client, arena.pool(), slab.size);
    Touch(&arena);
    TouchWaiting();
  }
}

bool Planner::State::OthersWantSlabs(const ClientArena& arena) const {
  const Device& device = devices_[ToInt(arena.device)];
  if (arena.allocation_phase || device.allocating == 0 || requests_.Waiting(arena) > 0)
    return false;
  const Tenant& tenant = tenants_.at(clients_.at(arena.client)->tenant);
  if (now_ >= std::max(device.full_until, tenant.device_full_until[ToInt(arena.device)]))
    return false;
  return arena.map.LargestHole() >= std::min(options_.slab, LargestSlab(arena));
}

bool Planner::State::DrainSome(std::vector<Emptying> slabs, Bytes wanted) {
  bool all = true;
  do {
    slabs = Cheapest(std::move(slabs), wanted);
    size_t rows = 0;
    for (size_t i = 0; i < slabs.size(); ++i) {
      rows += slabs[i].rows.size();
      if (i == 0 || rows <= kMostShrunkAtOnce) continue;
      slabs.resize(i, slabs.front());
      all = false;
    }
    if (Drain(slabs)) return all;
    // The host has no room for all of them, or not yet.
    all = false;
    wanted = Bytes(wanted.count() / 2);
  } while (slabs.size() > 1);
  return false;
}

// Gives memory back, slab by slab: slabs that are empty and not needed here, or needed by others,
// and what a lowered limit asks for.
void Planner::State::Shrink(ClientArena& arena) {
  const bool gives = arena.trimming || OthersWantSlabs(arena);
  while (gives && GiveBackFreeSlab(arena)) {
  }
  while (ExcessOf(arena) > Bytes{0} && GiveBackFreeSlab(arena)) {
  }
  const Bytes excess = ExcessOf(arena);
  if (excess == Bytes{0}) return;
  if (now_ >= arena.shrink_after) {
    std::vector<Emptying> slabs;
    FindEmptyable(arena, {}, Which::kAll, &slabs);
    if (DrainSome(std::move(slabs), excess)) return;
    arena.shrink_after = now_ + kShrinkRetry;
  }
  wakes_.ArmBy(arena, arena.shrink_after);
}

}  // namespace ravenstore::core
