// Which slabs are emptied and given back, and for whom.
#include <algorithm>

#include "core/scheduler.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {
// A client lets go of a slab within a millisecond or two. Who does not do it for so long is
// stopped.
constexpr Duration kLetGoWithin = std::chrono::milliseconds(200);
// A request does not wait for that: when so long has passed it asks others too, first for as much
// again, then for twice as much ..., so often at most.
constexpr uint32_t kAskedMoreMost = 4;
// Other arenas whose slabs are looked at for ones that can be emptied.
constexpr size_t kGiversTried = 8;
// Tensors that leave at once for a lowered limit, unless one slab holds more.
constexpr size_t kMostShrunkAtOnce = 4096;
}  // namespace

std::vector<ClientArena*> Scheduler::SharersWith(const ClientArena& arena, Limit binding) const {
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

std::vector<ClientArena*> Scheduler::GiversTo(const ClientArena& arena, Limit binding) const {
  std::vector<ClientArena*> givers;
  for (ClientArena* other : SharersWith(arena, binding)) {
    // What a guarantee takes it takes from whoever holds more than his, whatever that one waits
    // for.
    if (!irrevocable_ && requests_.Waiting(*other) > 0 && !other->waits_for_peak) {
      // Of two that wait the older may take the other's slabs; both ways they would swap for ever.
      // But one that nothing helps would keep what lets the younger go on.
      if (requests_.IsOlder(*other, arena) && !WaitsInVain(*other)) continue;
      // A copy that room is being made for is not redundant.
      if (other->space.awaited() > Bytes{0} || other->leaving > 0) continue;
    }
    // A client that did not let go of the last one would keep the next, too.
    if (UsageOf(*other).overdue > Bytes{0} || IsLate(*other)) continue;
    // Where all is in use there is nothing to give.
    if (other->index->size() > 0 || other->space.used() < other->space.held())
      givers.push_back(other);
  }
  const auto rank = [&](const ClientArena* giver) {
    if (!quota_.HasRanks()) return QuotaTree::Rank{};
    return quota_.RankOf(clients_.at(giver->client)->tenant, arena.pool());
  };
  std::stable_sort(givers.begin(), givers.end(), [&](const ClientArena* a, const ClientArena* b) {
    return std::pair(rank(a), UsageOf(*b).held) < std::pair(rank(b), UsageOf(*a).held);
  });
  givers.resize(std::min(givers.size(), kGiversTried));
  return givers;
}

Reclaimer::Arena Scheduler::Reclaimable(const ClientArena& arena) const {
  const Client& client = *clients_.at(arena.client);
  return {client.id,    client.tenant,         arena.space.slabs(), arena.space.map(),
          *arena.index, LinksOf(arena.device), VirtualTime(arena)};
}

Reclaimer::Asker Scheduler::AskerFor(const ClientArena& arena, Bytes need,
                                     QuotaTree::Claim claim) const {
  return {arena.client, clients_.at(arena.client)->tenant, arena.pool(), need, claim};
}

bool Scheduler::Drain(DeviceId device, Emptyings chosen) {
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto& a, const auto& b) { return a.client < b.client; });
  bool any = false;
  for (size_t i = 0; i < chosen.size();) {
    const ClientId client = chosen[i].client;
    std::vector<Range> slabs;
    std::vector<uint32_t> rows;
    for (; i < chosen.size() && chosen[i].client == client; ++i) {
      slabs.push_back(chosen[i].slab);
      rows.insert(rows.end(), chosen[i].rows.begin(), chosen[i].rows.end());
    }
    any |= Drain(*ArenaOf(client, device), slabs, std::move(rows));
  }
  return any;
}

bool Scheduler::Drain(ClientArena& arena, const std::vector<Range>& slabs,
                      std::vector<uint32_t> rows) {
  std::sort(rows.begin(), rows.end());  // one that lies in two slabs comes twice
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  if (!rows.empty() && !EvictAll(arena, rows, RedundantCopies::kMayDrop)) return false;
  for (const uint32_t row : rows) LeaveSlab(arena, catalog_[row]);
  for (const Range& slab : slabs) {
    arena.space.Close(slab);
    quota_.BeginReclaiming(arena.client, arena.pool(), slab.second);
  }
  EndDraining(arena);
  return true;
}

bool Scheduler::LeaveToLater(const ClientArena& arena, bool some_go, Emptyings* slabs) const {
  const CopyLedger::Lane next = NextLane(arena);
  CopyLedger::InFlight out = copies_.Of(next.device, next.pool, Way::kOut);
  std::set<uint32_t> leaving;  // a tensor that lies in several slabs is copied once
  return std::erase_if(*slabs, [&](const auto& one) {
           Bytes copied;
           for (const uint32_t row : one.rows) {
             if (!leaving.contains(row) && !CanDrop(catalog_[row])) copied += catalog_[row].size;
           }
           if (copied == Bytes{0}) return false;
           if (std::exchange(some_go, true) && !copies_.Takes(out, copied)) return true;
           leaving.insert(one.rows.begin(), one.rows.end());
           out.bytes += copied;
           ++out.copies;
           return false;
         }) > 0;
}

std::optional<Scheduler::Lack> Scheduler::LackFor(const ClientArena& arena, Bytes need) const {
  const auto place = arena.space.PlaceForSlab(need, options_.granularity);
  if (!place) return std::nullopt;
  const Bytes coming = RoomFor(arena, Coming::kIsThere) + arena.space.awaited();
  const Bytes missing = Minus(place->missing, coming);
  return Lack{*place, BindingFor(arena, place->missing), missing};
}

bool Scheduler::TakeSlabsFor(ClientArena& arena, Bytes need, const SlabCostLimit& cost_limit,
                             Take take) {
  if (now_ < arena.backoff_until) return false;
  const auto lack = LackFor(arena, need);
  if (!lack) return false;
  const auto& [place, binding, wanted] = *lack;
  const Bytes reclaiming = ReclaimingOf(arena, binding);
  const auto which = cost_limit.at_most > 0 ? Reclaimer::Which::kAll : Reclaimer::Which::kEmpty;
  if (wanted == Bytes{0}) {
    if (WaitsForLate(arena, binding)) AskMore(arena, *lack, which, cost_limit);
    return reclaiming + arena.space.awaited() > Bytes{0};  // help is under way
  }
  Emptyings slabs;
  if (take == Take::kEnough) reclaimer_.Find(Reclaimable(arena), place.reach, which, {}, &slabs);
  const TenantId own = clients_.at(arena.client)->tenant;
  for (ClientArena* giver : GiversTo(arena, binding)) {
    if (take == Take::kOtherTenants && clients_.at(giver->client)->tenant == own) continue;
    reclaimer_.Find(Reclaimable(*giver), {}, which, cost_limit.weight, &slabs);
  }
  const auto claim =
      take == Take::kOtherTenants ? QuotaTree::Claim::kRight : QuotaTree::Claim::kCost;
  Reclaimer::KeepShares(quota_, AskerFor(arena, need, claim), &slabs);
  // Of what is due some is taken in any case: larger slabs may hold more than the host has
  // room for.
  const bool again = take == Take::kOtherTenants;
  while (!slabs.empty()) {
    Reclaimer::Proposal chosen = Reclaimer::Cheapest(slabs, wanted);
    if (chosen.cost > cost_limit.at_most) return false;
    if (chosen.bytes < wanted && take != Take::kSome) return false;
    if (take != Take::kSome) {
      const bool more = LeaveToLater(arena, reclaiming > Bytes{0}, &chosen.slabs);
      arena.taking = more && requests_.Waiting(arena) > 0;
      taking_held_ |= arena.taking;
      if (chosen.slabs.empty()) return true;
    }
    const bool relocates = std::any_of(chosen.slabs.begin(), chosen.slabs.end(),
                                       [&](const auto& one) { return one.client == arena.client; });
    if (Drain(arena.device, std::move(chosen.slabs))) {
      if (requests_.Waiting(arena) > 0) {
        quota_.Reserve(arena.client, arena.pool(),
                       {place.missing, requests_.First(arena).id, irrevocable_});
      }
      arena.asked_more = 0;
      arena.relocating |= relocates;
      return true;
    }
    if (!again) return false;
    std::erase_if(slabs, [&](const auto& one) { return one.slab.second >= chosen.largest; });
  }
  return false;
}

bool Scheduler::IsLate(const ClientArena& arena) const {
  return std::any_of(
      arena.space.removals().begin(), arena.space.removals().end(),
      [this](const auto& slab) { return now_ >= slab.second.until - kLetGoWithin + kLateAfter; });
}

bool Scheduler::WaitsForLate(ClientArena& arena, Limit binding) {
  if (requests_.Waiting(arena) == 0 || arena.asked_more == kAskedMoreMost) return false;
  if (now_ < arena.late_at) return false;  // those who were asked last may let go yet
  const std::vector<ClientArena*> sharers = SharersWith(arena, binding);
  return std::any_of(sharers.begin(), sharers.end(),
                     [this](const ClientArena* other) { return IsLate(*other); });
}

void Scheduler::AskMore(ClientArena& arena, const Lack& lack, Reclaimer::Which which,
                        const SlabCostLimit& cost_limit) {
  const Bytes need = lack.place.missing;
  Emptyings slabs;
  // Of none more than would do, so that they are many clients.
  for (ClientArena* giver : GiversTo(arena, lack.binding)) {
    Emptyings of_one;
    reclaimer_.Find(Reclaimable(*giver), {}, which, cost_limit.weight, &of_one);
    of_one = Reclaimer::Cheapest(std::move(of_one), need).slabs;
    std::move(of_one.begin(), of_one.end(), std::back_inserter(slabs));
  }
  Reclaimer::KeepShares(quota_, AskerFor(arena, need, QuotaTree::Claim::kCost), &slabs);
  Reclaimer::Proposal chosen =
      Reclaimer::Cheapest(std::move(slabs), need * (1u << arena.asked_more));
  if (chosen.cost > cost_limit.at_most || !Drain(arena.device, std::move(chosen.slabs))) return;
  ++arena.asked_more;
  arena.late_at = now_ + kLateAfter;
}

Bytes Scheduler::RoomWithOthers(const ClientArena& arena, Bytes need) {
  const Bytes room = RoomFor(arena);
  const Bytes own = Minus(quota_.LimitOf(arena.client, arena.pool(), Limit::kClient),
                          UsageOf(arena).held);  // of its budget
  if (own <= room) return room;
  Emptyings slabs;
  for (ClientArena* giver : GiversTo(arena, BindingFor(arena, std::min(own, need))))
    reclaimer_.Find(Reclaimable(*giver), {}, Reclaimer::Which::kAll, {}, &slabs);
  Reclaimer::KeepShares(quota_, AskerFor(arena, need, QuotaTree::Claim::kCost), &slabs);
  Bytes given;
  for (const auto& one : slabs) given += one.slab.second;
  return std::min(own, room + given);
}

// Two limits may bind at once: the client's budget, for which its own pieces make way first, and
// then the device's memory, which others have the rest of.
bool Scheduler::EmptySlabsFor(ClientArena& arena, Bytes need) {
  Reclaimer::Compaction all = reclaimer_.Compact(
      Reclaimable(arena), need, RoomWithOthers(arena, need).RoundDown(options_.granularity));
  const uint64_t request = requests_.Waiting(arena) == 0 ? 0 : requests_.First(arena).id;
  const Tick since = arena.last_resort.request == request ? arena.last_resort.since : now_;
  arena.last_resort = {request, since, all.staying, all.settling || all.reach >= need};
  if (all.reach < need || !Drain(arena.device, std::move(all.slabs))) return false;
  std::erase_if(all.rows, [&](uint32_t row) { return !EvictionIndex::CanLeave(catalog_[row]); });
  if (!all.rows.empty()) EvictAll(arena, all.rows, RedundantCopies::kMayDrop);
  return arena.relocating = true;
}

bool Scheduler::GiveBackFreeSlab(ClientArena& arena) {
  for (size_t i = 0; i < arena.space.slabs().size(); ++i) {
    if (GiveBack(arena, arena.space.slabs()[i])) return true;
  }
  return false;
}

bool Scheduler::GiveBack(ClientArena& arena, Range slab) {
  return arena.space.IsFree(slab.first, slab.second) && Drain(arena, {slab}, {});
}

void Scheduler::EndDraining(ClientArena& arena) {
  // One by one, as they come free: the request that waits for them sees progress.
  for (const Range& slab : std::vector(arena.space.closed())) {
    const auto [offset, size] = slab;
    if (arena.space.IsEmptied(slab)) {
      arena.space.LetGo(slab, now_ + kLetGoWithin);
      late_.Arm({arena, offset}, now_ + kLateAfter);
      overdue_.Arm({arena, offset}, now_ + kLetGoWithin);
      plan_->push_back(RemoveSlab{arena.client, arena.device, offset});
      continue;
    }
    ExtentMap::Block block = arena.space.At(offset);
    if (arena.space.KindOf(block) != ExtentMap::Kind::kUsed) block = arena.space.After(block);
    const TensorRow& tensor = catalog_[arena.space.OwnerOf(block)];
    if (tensor.is_leaving()) continue;
    // A get has rescued what lived here: then the request that wants the slab tries again.
    arena.space.Open(slab);
    quota_.EndReclaiming(arena.client, arena.pool(), size);
    TouchWaiting();
  }
  if (UsageOf(arena).reclaiming == Bytes{0}) arena.relocating = false;
}

void Scheduler::NoteOverdue(ClientArena& arena) {
  const Bytes overdue = arena.space.NoteOverdue(now_);
  if (overdue == Bytes{0}) return;
  quota_.BeginOverdue(arena.client, arena.pool(), overdue);
  Touch(&arena);
  TouchWaiting();
}

bool Scheduler::OthersWantSlabs(const ClientArena& arena) const {
  const Device& device = devices_[ToInt(arena.device)];
  if (arena.allocation_phase || device.allocating == 0 || requests_.Waiting(arena) > 0)
    return false;
  const Tenant& tenant = tenants_.at(clients_.at(arena.client)->tenant);
  if (now_ >= std::max(device.full_until, tenant.device_full_until[ToInt(arena.device)]))
    return false;
  return arena.space.LargestHole() >= std::min(options_.slab, LargestSlab(arena));
}

bool Scheduler::DrainSome(DeviceId device, Emptyings slabs, Bytes wanted) {
  bool all = true;
  do {
    slabs = Reclaimer::Cheapest(std::move(slabs), wanted).slabs;
    size_t rows = 0;
    for (size_t i = 0; i < slabs.size(); ++i) {
      rows += slabs[i].rows.size();
      if (i == 0 || rows <= kMostShrunkAtOnce) continue;
      slabs.resize(i, slabs.front());
      all = false;
    }
    if (Drain(device, slabs)) return all;
    // The host has no room for all of them, or not yet.
    all = false;
    wanted = Bytes(wanted.count() / 2);
  } while (slabs.size() > 1);
  return false;
}

// Gives memory back, slab by slab: slabs that are empty and not needed here, or needed by others,
// and what a lowered limit asks for.
void Scheduler::Shrink(ClientArena& arena) {
  const bool gives = arena.trimming || OthersWantSlabs(arena);
  while (gives && GiveBackFreeSlab(arena)) {
  }
  while (ExcessOf(arena) > Bytes{0} && GiveBackFreeSlab(arena)) {
  }
  const Bytes excess = ExcessOf(arena);
  if (excess == Bytes{0}) return;
  if (now_ >= arena.shrink_after) {
    Emptyings slabs;
    reclaimer_.Find(Reclaimable(arena), {}, Reclaimer::Which::kAll, {}, &slabs);
    if (DrainSome(arena.device, std::move(slabs), excess)) return;
    arena.shrink_after = now_ + kShrinkRetry;
  }
  wakes_.ArmBy(arena, arena.shrink_after);
}

}  // namespace ravenstore::core
