// Slabs: where one is added, which are emptied and given back, and for whom.
#include <algorithm>

#include "core/check.h"
#include "core/planner_state.h"

namespace ravenstore::core {

namespace {
constexpr Duration kShrinkRetry = std::chrono::milliseconds(4);
// Bounds the work of a request much larger than the tensors that make way for it.
constexpr size_t kMostEvictedAtOnce = 4096;
// Other arenas whose slabs are looked at for ones that can be emptied.
constexpr size_t kReclaimsTried = 8;
// An arena grows by this part of itself: each slab takes time to make.
constexpr uint64_t kGrowthShare = 16;
// A client that holds so many slabs gets its next ahead of need.
constexpr uint64_t kSlabsBeforeAhead = 8;
// Ranges without memory, and blocks of slabs, looked at in one search.
constexpr int kRangesTried = 64;
constexpr size_t kBlocksTried = 16384;
template <typename... Bytess>
Bytes Least(Bytes first, Bytess... rest) {
  return std::min({first, rest...});
}

Bytes Minus(Bytes a, Bytes b) {
  return a > b ? a - b : Bytes{0};
}

Bytes RoundDown(Bytes bytes, Bytes unit) {
  return Bytes(bytes.count() / unit.count() * unit.count());
}

bool Overlap(const Range& a, const Range& b) {
  return a.first < b.first + b.second && b.first < a.first + a.second;
}
}  // namespace

std::optional<Planner::State::SlabPlace> Planner::State::PlaceForSlab(const Arena& arena,
                                                                      Bytes need) const {
  std::optional<SlabPlace> best;
  auto range = arena.map.AbsentFrom(Bytes{0});
  for (int i = 0; i < kRangesTried && range; ++i) {
    const auto [offset, size] = *range;
    const Bytes before = arena.map.FreeBefore(offset);
    Bytes missing =
        std::max(Minus(need, before).RoundUp(options_.granularity), options_.granularity);
    Bytes reach = before + missing;
    if (missing > size) {  // all of it, if what lies behind takes the rest
      missing = size;
      reach = before + size + arena.map.FreeFrom(offset + size);
    }
    if (reach >= need && (!best || missing < best->missing))
      best = SlabPlace{offset, missing, size, {offset - before, reach}};
    range = arena.map.AbsentFrom(offset + size);
  }
  return best;
}

Bytes Planner::State::SlabBudgetLeft(const Arena& arena) const {
  const Client& client = *clients_.at(arena.client);
  const Tenant& tenant = tenants_.at(client.tenant);
  const size_t device = ToInt(arena.device);
  return Least(Minus(client.budgets.device, arena.charged),
               Minus(tenant.budgets.device, tenant.device_held[device]),
               Minus(devices_[device].limit, devices_[device].held));
}

Bytes Planner::State::SlabSize(const Arena& arena) const {
  return std::max(options_.slab,
                  Bytes(arena.charged.count() / kGrowthShare).RoundUp(options_.granularity));
}

// Room is made while the client computes rather than while it waits.
void Planner::State::GrowAhead(Arena& arena) {
  if (!arena.growing || arena.adding || now_ < arena.backoff_until) return;
  if (!waiting_arenas_.empty()) return;  // they come first
  if (!arena.vacating.empty() || arena.being_removed > Bytes{0}) return;
  const Bytes slab = SlabSize(arena);
  if (arena.trimming || arena.charged.count() < options_.slab.count() * kSlabsBeforeAhead) return;
  if (arena.map.LargestHole() >= slab || SlabBudgetLeft(arena) < slab) return;
  const auto place = PlaceForSlab(arena, slab);
  if (place && place->room >= slab) AddSlabAt(arena, place->offset, slab);
}

bool Planner::State::AddSlabFor(Arena& arena, Bytes need) {
  if (now_ < arena.backoff_until) return false;
  const auto place = PlaceForSlab(arena, need);
  if (!place) return false;
  const Bytes left = SlabBudgetLeft(arena);
  if (left < place->missing) return false;
  // One after the other, if one does not suffice: small slabs can be given back where large ones
  // could not.
  const Bytes slab = RoundDown(Least(SlabSize(arena), left, place->room), options_.granularity);
  AddSlabAt(arena, place->offset, slab);
  return true;
}

void Planner::State::AddSlabAt(Arena& arena, Bytes offset, Bytes size) {
  arena.adding = true;
  arena.trimming = false;
  Charge(arena, size);
  plan_->push_back(AddSlab{arena.client, arena.device, offset, size});
}

bool Planner::State::AddSlabAndEvictFor(Arena& arena, Bytes need) {
  if (now_ < arena.backoff_until) return false;
  const auto range = arena.map.AbsentFrom(Bytes{0});
  if (!range) return false;
  const auto [offset, room] = *range;
  const Bytes slab = RoundDown(Least(SlabBudgetLeft(arena), room), options_.granularity);
  if (slab == Bytes{0}) return false;
  Bytes reach = slab;
  std::vector<uint32_t> rows;
  ExtentMap::Block block = arena.map.At(offset);
  while (reach < need) {
    block = arena.map.Before(block);
    if (block == ExtentMap::kNone || rows.size() >= kMostEvictedAtOnce) return false;
    reach += arena.map.SizeOf(block);
    if (arena.map.KindOf(block) == ExtentMap::Kind::kFree) continue;
    if (arena.map.KindOf(block) != ExtentMap::Kind::kUsed) return false;
    rows.push_back(arena.map.OwnerOf(block));
    if (!EvictionIndex::CanLeave(catalog_[rows.back()])) return false;
  }
  if (!EvictAll(arena, rows, SpareCopies::kMayDrop)) return false;
  AddSlabAt(arena, offset, slab);
  return true;
}

// The client has nothing more to give up: memory that others hold and do not use may serve it.
bool Planner::State::ReclaimFor(Arena& arena, Bytes need, double at_most) {
  const Client& client = *FindClient(arena.client);
  const Tenant& tenant = tenants_.at(client.tenant);
  const size_t device = ToInt(arena.device);
  const auto place = PlaceForSlab(arena, need);
  if (!place || arena.charged + place->missing > client.budgets.device) return false;
  const bool tenant_full = tenant.device_held[device] + place->missing > tenant.budgets.device;
  std::vector<Arena*> idle;
  for (const auto& [id, other_client] : clients_) {
    Arena* other = other_client->arenas[device].get();
    if (other == nullptr || other == &arena) continue;
    // A full tenant can only be helped by its own; a full device by anybody.
    if (tenant_full && other_client->tenant != client.tenant) continue;
    // Of two that wait the older may take the other's slabs; both ways they would swap for ever.
    const bool older = !other->waiting.empty() && other->waiting.front() < arena.waiting.front();
    if (older) continue;
    // What it is being given room with is no spare.
    if (!other->waiting.empty() && (other->adding || other->leaving > 0)) continue;
    // Help is under way.
    if (other->being_removed > Bytes{0} || !other->vacating.empty()) return true;
    if (GiveBackFreePiece(*other)) return true;
    if (other->index.size() > 0 && other->leaving == 0) idle.push_back(other);
  }
  std::stable_sort(idle.begin(), idle.end(),
                   [](const Arena* a, const Arena* b) { return a->charged > b->charged; });
  idle.resize(std::min(idle.size(), kReclaimsTried));
  const Bytes wanted = Minus(place->missing, SlabBudgetLeft(arena));
  return std::any_of(idle.begin(), idle.end(), [&](Arena* other) {
    return Vacate(*other, Cheapest(*other, wanted), at_most);
  });
}

std::vector<Planner::State::Emptying> Planner::State::Emptyable(const Arena& arena,
                                                                const Range& spared) const {
  const Tick own_time = OwnTime(arena);
  std::vector<Emptying> found;
  size_t blocks = 0;
  for (const Range& piece : arena.pieces) {
    if (blocks > kBlocksTried) break;
    if (Overlap(piece, spared)) continue;
    Emptying emptying{piece};
    bool can = true;
    for (ExtentMap::Block block = arena.map.At(piece.first);
         block != ExtentMap::kNone && arena.map.OffsetOf(block) < piece.first + piece.second;
         block = arena.map.After(block), ++blocks) {
      if (arena.map.KindOf(block) != ExtentMap::Kind::kUsed) continue;
      const Tensor& tensor = catalog_[arena.map.OwnerOf(block)];
      can = EvictionIndex::CanLeave(tensor);
      if (!can) break;
      emptying.rows.push_back(Catalog::RowOf(tensor.id));
      emptying.harm += arena.index.Harm(tensor, own_time, options_.link);
    }
    if (can) found.push_back(std::move(emptying));
  }
  const auto density = [](const Emptying& one) {
    return one.harm / static_cast<double>(one.piece.second.count());
  };
  std::sort(found.begin(), found.end(), [&](const Emptying& a, const Emptying& b) {
    return std::pair(density(a), a.piece) < std::pair(density(b), b.piece);
  });
  return found;
}

std::vector<Planner::State::Emptying> Planner::State::Cheapest(const Arena& arena, Bytes wanted,
                                                               const Range& spared) const {
  std::vector<Emptying> chosen = Emptyable(arena, spared);
  Bytes sum;
  size_t count = 0;
  while (count < chosen.size() && sum < wanted) sum += chosen[count++].piece.second;
  chosen.resize(count);
  return chosen;
}

bool Planner::State::Vacate(Arena& arena, const std::vector<Emptying>& chosen, double at_most) {
  if (chosen.empty()) return false;
  std::vector<uint32_t> rows;
  double harm = 0;
  for (const Emptying& one : chosen) {
    rows.insert(rows.end(), one.rows.begin(), one.rows.end());
    harm += one.harm;
  }
  if (harm > at_most) return false;
  std::sort(rows.begin(), rows.end());  // one that lies in two slabs comes twice
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  if (!rows.empty() && !EvictAll(arena, rows, SpareCopies::kMayDrop)) {
    // The host may have room for less.
    return chosen.size() > 1 && Vacate(arena, {chosen.front()});
  }
  for (const Emptying& one : chosen) {
    arena.vacating.push_back(one.piece);
    Going(arena) += one.piece.second;
  }
  EndVacating(arena);
  return true;
}

bool Planner::State::RenewSlabsFor(Arena& arena, Bytes need, double at_most) {
  if (now_ < arena.backoff_until) return false;
  const auto place = PlaceForSlab(arena, need);
  if (!place) return false;
  const Bytes wanted = Minus(place->missing, SlabBudgetLeft(arena));
  const std::vector<Emptying> chosen = Cheapest(arena, wanted, place->reach);
  Bytes sum;
  for (const Emptying& one : chosen) sum += one.piece.second;
  return sum >= wanted && Vacate(arena, chosen, at_most);
}

bool Planner::State::EmptySlabsFor(Arena& arena, Bytes need) {
  const auto chosen = Emptyable(arena, {});
  Bytes sum = SlabBudgetLeft(arena);
  std::vector<Range> staying = arena.pieces;
  for (const Emptying& one : chosen) {
    sum += one.piece.second;
    std::erase(staying, one.piece);
  }
  staying.emplace_back(arena.map.range(), Bytes{0});
  std::sort(staying.begin(), staying.end());
  Bytes end;
  const bool room = std::any_of(staying.begin(), staying.end(), [&](const Range& piece) {
    return piece.first - std::exchange(end, piece.first + piece.second) >= need;
  });
  return room && sum >= need && Vacate(arena, chosen);
}

bool Planner::State::GiveBackFreePiece(Arena& arena) {
  for (size_t i = 0; i < arena.pieces.size(); ++i) {
    if (GiveBack(arena, arena.pieces[i])) return true;
  }
  return false;
}

bool Planner::State::GiveBack(Arena& arena, Range piece) {
  const auto [offset, size] = piece;
  const auto found = std::find(arena.pieces.begin(), arena.pieces.end(), piece);
  if (found == arena.pieces.end() || !arena.map.IsFree(offset, size)) return false;
  arena.map.RetirePiece(offset, size);
  arena.pieces.erase(found);
  arena.removing[offset] = size;
  arena.being_removed += size;
  Going(arena) += size;
  plan_->push_back(RemoveSlab{arena.client, arena.device, offset});
  return true;
}

void Planner::State::EndVacating(Arena& arena) {
  // One by one, as they come free: whoever waits for them sees that it goes on.
  std::erase_if(arena.vacating, [&](const Range& piece) {
    if (!arena.map.IsFree(piece.first, piece.second)) return false;
    Going(arena) -= piece.second;
    return GiveBack(arena, piece);
  });
  if (arena.leaving > 0 || arena.vacating.empty()) return;
  // A get has rescued what lived in the rest: then whoever wants the slabs tries again.
  for (const Range& piece : std::exchange(arena.vacating, {})) Going(arena) -= piece.second;
  TouchWaiting();
}

Bytes& Planner::State::Going(const Arena& arena) {
  return tenants_.at(FindClient(arena.client)->tenant).device_going[ToInt(arena.device)];
}

Bytes Planner::State::ExcessOf(const Arena& arena) const {
  const Client& client = *clients_.at(arena.client);
  const Tenant& tenant = tenants_.at(client.tenant);
  const size_t device = ToInt(arena.device);
  // Of what is shared, everybody gives in proportion.
  const auto share = [&arena](Bytes excess, Bytes held) {
    return Bytes(static_cast<uint64_t>(static_cast<double>(excess.count()) *
                                       static_cast<double>(arena.charged.count()) /
                                       static_cast<double>(std::max<uint64_t>(1, held.count()))));
  };
  Bytes going;
  for (const auto& [id, one] : tenants_) going += one.device_going[device];
  const Bytes held = devices_[device].held;
  const Bytes tenant_held = tenant.device_held[device];
  const Bytes of_client =
      Minus(arena.charged - arena.being_removed - arena.Vacating(), client.budgets.device);
  const Bytes of_tenant = Minus(tenant_held - tenant.device_going[device], tenant.budgets.device);
  const Bytes of_device = Minus(held - going, devices_[device].limit);
  const Bytes most = std::max({of_client, of_tenant, of_device});
  if (most == Bytes{0}) return most;
  return std::max({of_client, share(of_tenant, tenant_held), share(of_device, held), Bytes{1}});
}

// A lowered limit: gives memory back, slab by slab.
void Planner::State::Shrink(Arena& arena) {
  while (arena.trimming && GiveBackFreePiece(arena)) {
  }
  while (ExcessOf(arena) > Bytes{0} && GiveBackFreePiece(arena)) {
  }
  const Bytes excess = ExcessOf(arena);
  if (excess == Bytes{0} || arena.leaving > 0 || now_ < arena.shrink_after) return;
  if (Vacate(arena, Cheapest(arena, excess))) return;
  // Something of every slab is in use, or the host is full.
  arena.shrink_after = now_ + kShrinkRetry;
  WakeAt(arena.shrink_after);
  active_arenas_.insert(&arena);
}

}  // namespace ravenstore::core
