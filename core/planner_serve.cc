// What the planner proposes: room for requests, prefetch, pre-cleaning.
#include <algorithm>

#include "core/check.h"
#include "core/planner_state.h"
#include "core/size_text.h"

namespace ravenstore::core {

namespace {
// An eviction makes the client's arena "pressed" for so long: dirty tensors are copied out ahead.
constexpr Duration kPressedFor = std::chrono::seconds(10);
// Something had to wait for a dirty tensor's copy: for so long more are copied out ahead of need.
constexpr Duration kShortFor = std::chrono::milliseconds(5);
// While nothing but the passing of time can help, look again this often.
constexpr Duration kRetry = std::chrono::milliseconds(1);
constexpr Duration kRetryPerWaiting = std::chrono::microseconds(20);
// A search for slabs to empty that was in vain is repeated after this, then after twice as long ...
constexpr Duration kReclaimRetryMax = std::chrono::milliseconds(32);
constexpr Duration kShrinkRetry = std::chrono::milliseconds(4);
// Of what an arena holds, clean tensors worth so much are enough to serve the next requests at
// once.
constexpr uint64_t kCleanShare = 2;  // a half
// Of a budget, so much in use is filling up.
constexpr uint64_t kFillingShare = 2;  // a half
constexpr int kPrefetchesPerServe = 8;
constexpr int kCleansPerServe = 8;
// A client that takes tensor after tensor has use for so many times the room that the next needs.
constexpr uint64_t kUsefulExcess = 2;
// Bounds the work of a request much larger than the tensors that make way for it.
constexpr size_t kMostEvictedAtOnce = 4096;
// Other arenas whose slabs are looked at for one that can be emptied.
constexpr size_t kReclaimsTried = 8;

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

// Without a copy: it is not needed, is on the host as it is, or is made anew more cheaply.
bool CanDrop(const Tensor& tensor) {
  return tensor.never || !tensor.dirty() || tensor.recompute > 0;
}
}  // namespace

void Planner::State::Touch(Arena* arena) {
  if (std::exchange(arena->touched, true)) return;
  touched_.push_back(arena);
}

void Planner::State::TouchWaiting() {
  for (Arena* arena : waiting_arenas_) Touch(arena);
}

void Planner::State::HostRoomCame() {
  if (std::exchange(host_wanted_, false)) TouchWaiting();
}

Duration Planner::State::RetryAfter() const {
  return kRetry + kRetryPerWaiting * static_cast<int64_t>(waiting_arenas_.size());
}

uint64_t Planner::State::ChangesFor(const Arena& arena) const {
  return arena.map.changes() + arena.index.changes() + host_.changes() + spare_copies_noted_;
}

void Planner::State::ServeTouched() {
  // Serving one may touch others; each is served as often as it is touched.
  while (!touched_.empty()) {
    Arena* arena = touched_.front();
    touched_.pop_front();
    arena->touched = false;
    Serve(*arena);
  }
}

void Planner::State::Serve(Arena& arena) {
  EndVacating(arena);
  Shrink(arena);
  while (!arena.waiting.empty() && !arena.vacating) {
    const Request& request = requests_.at(arena.waiting.front());
    if (request.is_fetch() && !BringAway(*catalog_.Find(request.tensor))) {
      WakeAt(now_ + RetryAfter());
      break;
    }
    if (request.is_fetch() && !MayDemand(arena)) {
      demand_held_ = true;  // a copy's end, whoever's, brings us back
      break;
    }
    if (TryServe(arena, request)) continue;
    if (!MakeRoom(arena, request)) WakeAt(now_ + RetryAfter());
    break;
  }
  if (arena.waiting.empty()) {
    Prefetch(arena);
  } else if (!HelpIsNear(arena)) {
    FailImpatient(arena);
  }
  Preclean(arena);
}

bool Planner::State::MayDemand(const Arena& arena) const {
  const Device& device = devices_[ToInt(arena.device)];
  return device.ins == 0 ||
         (device.ins < options_.demand_copies && device.in < options_.demand_bytes);
}

bool Planner::State::HelpIsNear(const Arena& arena) const {
  return arena.adding || (arena.leaving > 0 && arena.copying_out == 0);
}

void Planner::State::FailImpatient(Arena& arena) {
  if (arena.impatient == 0) return;
  for (size_t i = 0; i < arena.waiting.size();) {
    const Request& request = requests_.at(arena.waiting[i]);
    if (request.fail_fast) {
      Fail(request, ErrorCode::kOutOfMemory, WhoHolds(request));
    } else {
      ++i;
    }
  }
}

bool Planner::State::TryServe(Arena& arena, const Request& request) {
  return request.is_fetch() ? TryFetch(arena, request) : TryCreate(arena, request);
}

bool Planner::State::TryCreate(Arena& arena, const Request& given) {
  if (!Grants(arena, given)) return false;
  Dequeue(given);
  return true;
}

bool Planner::State::Grants(Arena& arena, const Request& request) {
  const auto block = arena.map.Allocate(request.size, 0);
  if (!block) return false;
  arena.growing = true;
  Client& client = *FindClient(request.client);
  Tensor& tensor = catalog_.Add();
  tensor.size = request.size;
  tensor.client = request.client;
  tensor.slot = request.slot;
  tensor.name = request.name;
  tensor.device = request.device;
  tensor.device_block = *block;
  tensor.in_use = false;
  SetInUse(tensor, true);
  arena.map.SetOwner(*block, Catalog::RowOf(tensor.id));
  if (options_.learn) client.forecast.Created(tensor.name, tensor.size, &tensor.logical, now_);
  if (client.slots.size() <= ToInt(request.slot))
    client.slots.resize(ToInt(request.slot) + 1u, kNoTensor);
  client.slots[ToInt(request.slot)] = tensor.id;
  ++client.tensors;
  Count(request.client, &PlannerStats::creates, 1);
  plan_->push_back(
      Grant{request.client, request.slot, tensor.id, request.device, arena.map.OffsetOf(*block)});
  return true;
}

bool Planner::State::TryFetch(Arena& arena, const Request& given) {
  const auto block = arena.map.Allocate(given.size, Catalog::RowOf(given.tensor));
  if (!block) return false;
  Tensor& tensor = *catalog_.Find(given.tensor);
  Dequeue(given);
  tensor.waiting = false;
  tensor.device = arena.device;
  tensor.device_block = *block;
  const bool anew = tensor.given_up;
  if (anew) {
    tensor.given_up = false;
    tensor.residency = Residency::kOnDevice;
    Count(tensor.client, &PlannerStats::recomputes, 1);
  } else {
    StartCopyIn(arena, tensor, true);
  }
  SetInUse(tensor, true);
  tensor.quiet = false;
  plan_->push_back(
      Promise{tensor.id, tensor.device, arena.map.OffsetOf(*block), /*arriving=*/!anew, anew});
  return true;
}

void Planner::State::StartCopyIn(Arena& arena, Tensor& tensor, bool demand) {
  Device& device = devices_[ToInt(arena.device)];
  device.in += tensor.size;
  ++device.ins;
  Count(tensor.client, &PlannerStats::in, tensor.size);
  tensor.residency = Residency::kArriving;
  tensor.copying = true;
  tensor.prefetched = !demand;
  plan_->push_back(CopyIn{tensor.id, arena.device, host_.OffsetOf(tensor.host_block),
                          arena.map.OffsetOf(tensor.device_block), tensor.size, demand});
}

bool Planner::State::MakeRoom(Arena& arena, const Request& request) {
  // One thing at a time: what is under way may suffice.
  if (arena.adding) return true;
  const Bytes need = request.size.RoundUp(kExtentAlignment);
  if (AddSlabFor(arena, need)) return true;
  if (arena.leaving > 0) return true;
  if (!request.is_fetch()) arena.consuming = false;
  arena.pressed_until = now_ + kPressedFor;
  active_arenas_.insert(&arena);
  if (FindVictims(arena, need) || AddSlabAndEvictFor(arena, need)) {
    if (request.is_fetch() && arena.copying_out > 0) arena.short_until = now_ + kShortFor;
    return true;
  }
  if (now_ < arena.reclaim_after) return false;
  if (ReclaimFor(arena, need)) {
    arena.reclaim_wait = {};
    return true;
  }
  arena.reclaim_wait = std::clamp(arena.reclaim_wait * 2, RetryAfter(), kReclaimRetryMax);
  arena.reclaim_after = now_ + arena.reclaim_wait;
  return false;
}

bool Planner::State::FindVictims(Arena& arena, Bytes need) {
  // With nothing changed there are none again; but a back-off ends by itself.
  const bool backing_off = now_ < arena.backoff_until || now_ < host_backoff_until_;
  if (!backing_off && arena.no_run == std::pair(ChangesFor(arena), need)) return false;
  const EvictionIndex::Limits any{.useful = arena.growing ? kUsefulExcess : 1};
  if (EvictRun(arena, need, any, SpareCopies::kKeep)) return true;
  // The host may have no room for the best victims: then those that need none there, and only then
  // at the cost of copies that make others clean.
  const EvictionIndex::Limits clean{.clean_only = true, .later_than = nullptr};
  if (EvictRun(arena, need, clean, SpareCopies::kKeep)) return true;
  if (EvictRun(arena, need, {}, SpareCopies::kMayDrop)) return true;
  if (!backing_off) arena.no_run = {ChangesFor(arena), need};
  return false;
}

std::optional<Planner::State::SlabPlace> Planner::State::PlaceForSlab(const Arena& arena,
                                                                      Bytes need) const {
  // The lowest range without memory that, with the hole before it, takes the request.
  for (auto range = arena.map.Absent(options_.granularity); range;) {
    const auto [offset, size] = *range;
    const Bytes missing = Minus(need, arena.map.FreeBefore(offset)).RoundUp(options_.granularity);
    if (size >= missing) return SlabPlace{offset, std::max(missing, options_.granularity), size};
    range = arena.map.Absent(need);
    if (range && range->first == offset) return std::nullopt;
  }
  return std::nullopt;
}

Bytes Planner::State::SlabBudgetLeft(const Arena& arena) const {
  const Client& client = *clients_.at(arena.client);
  const Tenant& tenant = tenants_.at(client.tenant);
  const size_t device = ToInt(arena.device);
  return Least(Minus(client.budgets.device, arena.charged),
               Minus(tenant.budgets.device, tenant.device_held[device]),
               Minus(devices_[device].limit, devices_[device].held));
}

bool Planner::State::AddSlabFor(Arena& arena, Bytes need) {
  if (now_ < arena.backoff_until) return false;
  const auto place = PlaceForSlab(arena, need);
  if (!place) return false;
  const Bytes slab =
      RoundDown(Least(std::max(options_.slab, place->missing), SlabBudgetLeft(arena), place->room),
                options_.granularity);
  if (slab < place->missing) return false;
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
  const auto range = arena.map.Absent(options_.granularity);
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
    if (!EvictionIndex::Contains(catalog_[rows.back()])) return false;
  }
  if (!EvictAll(arena, rows, SpareCopies::kMayDrop)) return false;
  AddSlabAt(arena, offset, slab);
  return true;
}

bool Planner::State::EvictRun(Arena& arena, Bytes need, const EvictionIndex::Limits& limits,
                              SpareCopies spare) {
  return EvictAll(arena, arena.index.FindRun(arena.map, need, now_, options_.link, limits), spare);
}

bool Planner::State::EvictAll(Arena& arena, const std::vector<uint32_t>& rows, SpareCopies spare) {
  // Taken out of the books' reach first, so that room on the host for one is not made by giving up
  // the host copy of another.
  for (const uint32_t row : rows) {
    catalog_[row].copying = true;
    arena.index.Erase(catalog_[row]);
  }
  const bool all = std::all_of(rows.begin(), rows.end(), [&](uint32_t row) {
    Tensor& tensor = catalog_[row];
    if (CanDrop(tensor)) return true;
    return now_ >= arena.backoff_until && AllocateHost(tensor, spare);
  });
  for (const uint32_t row : rows) {
    Tensor& tensor = catalog_[row];
    if (all) {
      Evict(arena, tensor);
      continue;
    }
    tensor.copying = false;
    if (tensor.dirty()) {
      FreeHost(tensor);
    } else {
      NoteSpareCopy(tensor);
    }
    Reindex(tensor);
  }
  return all && !rows.empty();
}

void Planner::State::Evict(Arena& arena, Tensor& tensor) {
  ++arena.leaving;
  if (options_.policy == Policy::kGdsf) arena.index.Age(tensor);
  tensor.residency = Residency::kLeaving;
  if (CanDrop(tensor)) {
    tensor.giving_up = tensor.dirty() && !tensor.never;
    plan_->push_back(Drop{tensor.id});
  } else {
    StartCopyOut(arena, tensor, false);
  }
}

bool Planner::State::BringAway(Tensor& tensor) {
  if (tensor.residency == Residency::kAway) return true;
  if (tensor.residency != Residency::kOnDevice || tensor.copying || !tensor.quiet) return false;
  if (!tensor.dirty()) {
    FreeDevice(tensor);
    tensor.residency = Residency::kAway;
    return true;
  }
  Arena& arena = *ArenaOf(tensor);
  if (now_ < arena.backoff_until || !AllocateHost(tensor)) return false;
  ++arena.leaving;
  tensor.copying = true;
  tensor.residency = Residency::kLeaving;
  StartCopyOut(arena, tensor, true);
  return false;
}

void Planner::State::StartCopyOut(Arena& arena, Tensor& tensor, bool held) {
  ++arena.copying_out;
  tensor.put_seen = false;
  Device& device = devices_[ToInt(arena.device)];
  device.out += tensor.size;
  ++device.outs;
  Count(tensor.client, &PlannerStats::out, tensor.size);
  plan_->push_back(CopyOut{tensor.id, arena.device, arena.map.OffsetOf(tensor.device_block),
                           host_.OffsetOf(tensor.host_block), tensor.size, true, held});
}

// The client has nothing more to give up: memory that others hold and do not use may serve it.
bool Planner::State::ReclaimFor(Arena& arena, Bytes need) {
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
    if (other->being_removed > Bytes{0} || other->vacating) return true;  // help is under way
    if (GiveBackFreePiece(*other)) return true;
    if (other->index.size() > 0 && other->leaving == 0) idle.push_back(other);
  }
  std::stable_sort(idle.begin(), idle.end(),
                   [](const Arena* a, const Arena* b) { return a->charged > b->charged; });
  for (size_t i = 0; i < std::min(idle.size(), kReclaimsTried); ++i) {
    for (const auto& piece : idle[i]->pieces) {
      if (EvictPiece(*idle[i], piece)) return true;
    }
  }
  return false;
}

bool Planner::State::GiveBackFreePiece(Arena& arena) {
  for (size_t i = 0; i < arena.pieces.size(); ++i) {
    const auto [offset, size] = arena.pieces[i];
    if (!arena.map.IsFree(offset, size)) continue;
    arena.map.RetirePiece(offset, size);
    arena.pieces.erase(arena.pieces.begin() + static_cast<ptrdiff_t>(i));
    arena.removing[offset] = size;
    arena.being_removed += size;
    tenants_.at(FindClient(arena.client)->tenant).device_going[ToInt(arena.device)] += size;
    plan_->push_back(RemoveSlab{arena.client, arena.device, offset});
    return true;
  }
  return false;
}

bool Planner::State::EvictPiece(Arena& arena, std::pair<Bytes, Bytes> piece) {
  std::vector<uint32_t> rows;
  for (ExtentMap::Block block = arena.map.At(piece.first);
       block != ExtentMap::kNone && arena.map.OffsetOf(block) < piece.first + piece.second;
       block = arena.map.After(block)) {
    if (arena.map.KindOf(block) != ExtentMap::Kind::kUsed) continue;
    const uint32_t row = arena.map.OwnerOf(block);
    if (!EvictionIndex::Contains(catalog_[row])) return false;
    rows.push_back(row);
  }
  if (!EvictAll(arena, rows, SpareCopies::kMayDrop)) return false;
  arena.vacating = piece;
  tenants_.at(FindClient(arena.client)->tenant).device_going[ToInt(arena.device)] += piece.second;
  return true;
}

void Planner::State::EndVacating(Arena& arena) {
  if (!arena.vacating || arena.leaving > 0) return;
  tenants_.at(FindClient(arena.client)->tenant).device_going[ToInt(arena.device)] -=
      arena.vacating->second;
  arena.vacating.reset();
  // A get may have rescued one of those that lived there: then whoever wants the slab tries again.
  GiveBackFreePiece(arena);
}

bool Planner::State::IsOverBudget(const Arena& arena) {
  const Client& client = *FindClient(arena.client);
  const Tenant& tenant = tenants_.at(client.tenant);
  const size_t device = ToInt(arena.device);
  const Bytes vacating = arena.vacating ? arena.vacating->second : Bytes{0};
  return arena.charged - arena.being_removed - vacating > client.budgets.device ||
         tenant.device_held[device] - tenant.device_going[device] > tenant.budgets.device ||
         IsOverLimit(device);
}

bool Planner::State::IsOverLimit(size_t device) const {
  Bytes held = devices_[device].held;
  if (held <= devices_[device].limit) return false;
  for (const auto& [id, tenant] : tenants_) held -= tenant.device_going[device];
  return held > devices_[device].limit;
}

// A lowered limit: gives memory back, slab by slab.
void Planner::State::Shrink(Arena& arena) {
  while (arena.trimming && GiveBackFreePiece(arena)) {
  }
  while (IsOverBudget(arena) && GiveBackFreePiece(arena)) {
  }
  if (!IsOverBudget(arena) || arena.leaving > 0 || now_ < arena.shrink_after) return;
  for (const auto& piece : arena.pieces) {
    if (EvictPiece(arena, piece)) return;
  }
  // Something of every slab is in use, or the host is full.
  arena.shrink_after = now_ + kShrinkRetry;
  WakeAt(arena.shrink_after);
  active_arenas_.insert(&arena);
}

void Planner::State::Prefetch(Arena& arena) {
  if (!options_.prefetch || !arena.consuming || IsOverBudget(arena)) return;
  const Device& device = devices_[ToInt(arena.device)];
  for (int i = 0; i < kPrefetchesPerServe; ++i) {
    if (arena.leaving > 0 || arena.adding) return;  // room is being made: look again then
    const bool by_order = !arena.due_order.empty() || !arena.due_learned.empty();
    const auto& due = !arena.due_order.empty()     ? arena.due_order
                      : !arena.due_learned.empty() ? arena.due_learned
                                                   : arena.due_at;
    if (due.empty()) return;
    const Tensor& next = *catalog_.Find(due.begin()->second);
    const bool refuted = next.use_kind == UseKind::kLearned && Forecast::IsAssumed(next.use_key) &&
                         !FindClient(arena.client)->forecast.Assumes();
    if (refuted) return;
    if (!UnderCopyLimit(device.in, device.ins, next.size)) return;
    bool is_due = true;
    if (!by_order) {
      // In time for the copy, and as long again for what is queued before it.
      const auto copy = std::chrono::duration_cast<Duration>(
          std::chrono::duration<double>(static_cast<double>((next.size + device.in).count()) /
                                        options_.link.up_bytes_per_second));
      const Tick start = Tick(Duration(next.use_key)) - 2 * (options_.link.latency + copy);
      is_due = now_ >= start;
      if (!is_due) {
        WakeAt(start);
        active_arenas_.insert(&arena);
      }
    }
    if (!PrefetchNext(arena, next, is_due)) return;
  }
}

bool Planner::State::PrefetchNext(Arena& arena, const Tensor& next, bool due) {
  const auto block = arena.map.Allocate(next.size, Catalog::RowOf(next.id));
  if (!block) {
    if (!due) return false;
    // Do no harm: only what is needed later, and leaves without a copy, makes way.
    EvictionIndex::Limits limits;
    limits.clean_only = true;
    limits.later_than = &next;
    if (!EvictRun(arena, next.size.RoundUp(kExtentAlignment), limits, SpareCopies::kKeep)) {
      const auto dirty = arena.index.BestDirty(now_, options_.link);
      if (dirty && EvictionIndex::IsLater(catalog_[*dirty], next))
        arena.short_until = now_ + kShortFor;
    }
    return false;  // the answers to the drops bring us back
  }
  Tensor& tensor = *catalog_.Find(next.id);
  Unlist(tensor);
  tensor.device_block = *block;
  Count(tensor.client, &PlannerStats::prefetches, 1);
  StartCopyIn(arena, tensor, false);
  return true;
}

void Planner::State::Preclean(Arena& arena) {
  if (!options_.preclean || now_ < arena.backoff_until) return;
  // A client whose device is filling up, and who says what it needs when, will be pressed soon.
  const bool filling =
      arena.growing && arena.map.used() * kFillingShare >= FindClient(arena.client)->budgets.device;
  const bool pressed = now_ < arena.pressed_until;
  if (!pressed && !filling) return;
  if (now_ < host_short_until_) return;
  if (!arena.growing && now_ >= arena.short_until) return;
  active_arenas_.insert(&arena);
  Device& device = devices_[ToInt(arena.device)];
  for (int i = 0; i < kCleansPerServe; ++i) {
    if (arena.index.clean_bytes() * kCleanShare >= arena.map.held()) return;
    const auto row = arena.index.BestDirty(now_, options_.link);
    if (!row) return;
    Tensor& tensor = catalog_[*row];
    if (!pressed && !KnowsAhead(tensor)) return;
    if (!UnderCopyLimit(device.out, device.outs, tensor.size)) return;
    if (!AllocateHost(tensor, SpareCopies::kKeep)) return;
    tensor.copying = true;
    tensor.put_seen = false;
    Reindex(tensor);
    device.out += tensor.size;
    ++device.outs;
    Count(tensor.client, &PlannerStats::out, tensor.size);
    plan_->push_back(Clean{tensor.id, arena.device, arena.map.OffsetOf(tensor.device_block),
                           host_.OffsetOf(tensor.host_block), tensor.size});
  }
}

}  // namespace ravenstore::core
