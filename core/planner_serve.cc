// What the planner proposes so that requests get their room.
#include <algorithm>
#include <limits>

#include "core/planner_state.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {
constexpr Duration kRetryPerWaiting = std::chrono::microseconds(20);
// Among many the looks themselves are a tenth of the time at most.
constexpr Duration kRetryAmongMany = std::chrono::microseconds(160);
// The backoff after a search that found nothing, for every block that it looked at: some ten times
// what that takes. So many are no matter.
constexpr Duration kBackoffPerBlock = std::chrono::nanoseconds(64);
constexpr uint64_t kBlocksForNothing = 256;
// What the client has put and freed before it asked is known by then.
constexpr Duration kStuckFor = std::chrono::milliseconds(2);
// Requests of any client that are answered in one go.
constexpr size_t kAnswersPerPass = 1024;
}  // namespace

void Planner::State::Touch(ClientArena* arena) {
  if (std::exchange(arena->touched, true)) return;
  touched_.push_back(arena);
}

void Planner::State::TouchWaiting() {
  for (const auto& [id, line] : requests_.lines()) Touch(ArenaOf(id));
}

void Planner::State::TouchFetch(const TensorRow& tensor) {
  if (!tensor.waiting || FindClient(tensor.client) == nullptr) return;
  Touch(ArenaOf(requests_.FetchOf(tensor.id)));
}

void Planner::State::AwayRoomCame() {
  if (std::exchange(away_wanted_, false)) TouchWaiting();
}

Duration Planner::State::RetryAfter() const {
  const auto waiting = static_cast<int64_t>(requests_.lines().size());
  return std::max(kRetry + kRetryPerWaiting * waiting, kRetryAmongMany * waiting);
}

uint64_t Planner::State::ChangesFor(const ClientArena& arena) const {
  uint64_t changes = arena.space.changes() + arena.index->changes() + redundant_copies_noted_;
  for (const auto& [id, pool] : away_) changes += pool.changes();
  return changes;
}

void Planner::State::ServeTouched() {
  // Serving one may touch others; each is served as often as it is touched.
  while (!touched_.empty() && answered_ < kAnswersPerPass) {
    ClientArena* arena = touched_.front();
    touched_.pop_front();
    arena->touched = false;
    Serve(*arena);
  }
  // The others in the next pass, so that no other client waits for them all.
  if (!touched_.empty()) WakeAt(now_);
  served_.reset();
}

void Planner::State::Serve(ClientArena& arena) {
  served_ = arena.client;
  EndDraining(arena);
  Shrink(arena);
  while (requests_.Waiting(arena) > 0) {
    if (answered_ >= kAnswersPerPass) return Touch(&arena);
    const Request& request = requests_.First(arena);
    if (ExceedsShare(arena, request.size) ||
        (!request.is_fetch() && LacksCover(arena, request.size))) {
      WakeAt(now_ + RetryAfter());
      break;
    }
    if (request.is_fetch() && !BringAway(*catalog_.Find(request.tensor))) {
      WakeAt(now_ + RetryAfter());
      break;
    }
    if (request.is_fetch() &&
        !copies_.MayDemand(LaneOf(arena, catalog_.Find(request.tensor)->away.pool), Way::kIn)) {
      demand_held_ = true;  // the end of any client's copy brings us back
      break;
    }
    if (WaitsForPeak(arena, request)) break;
    if (TryServe(arena, request)) continue;
    if (!MakeRoom(arena, request)) {
      WakeAt(now_ + RetryAfter());
      if (request.fail_stuck && IsStuck(arena, request)) {
        FailForRoom(request);
        continue;
      }
    }
    break;
  }
  if (requests_.Waiting(arena) == 0) {
    GrowAhead(arena);
    Prefetch(arena);
  } else if (!HelpIsNear(arena)) {
    FailFastRequests(arena);
  }
  Preclean(arena);
}

bool Planner::State::HelpIsNear(const ClientArena& arena) const {
  return arena.space.awaited() > Bytes{0} || (arena.leaving > 0 && arena.copying_out == 0);
}

void Planner::State::FailFastRequests(ClientArena& arena) {
  while (answered_ < kAnswersPerPass) {
    const Request* request = requests_.FirstFailingFast(arena);
    if (request == nullptr) return;
    FailForRoom(*request);
  }
}

bool Planner::State::IsStuck(ClientArena& arena, const Request& request) {
  if (arena.last_resort.request != request.id || arena.last_resort.hope) return false;
  if (now_ < arena.last_resort.since + kStuckFor) return false;
  if (arena.leaving > 0 || arena.space.awaited() > Bytes{0}) return false;
  if (!arena.space.closed().empty() || !arena.space.removals().empty()) return false;
  if (clients_.size() > 1 && BindingFor(arena, request.size) != Limit::kClient) return false;
  // What could leave may wait for room elsewhere.
  if (!MaySearch(arena)) return false;
  const uint64_t searched = SearchedFor(arena);
  const auto run = arena.index->FindRun(arena.space.map(), request.size.RoundUp(kExtentAlignment),
                                        VirtualTime(arena), LinksOf(arena.device), {});
  BackOffSearch(arena, searched);
  return run.empty();
}

bool Planner::State::TryServe(ClientArena& arena, const Request& request) {
  return request.is_fetch() ? TryFetch(arena, request) : TryCreate(arena, request);
}

bool Planner::State::TryCreate(ClientArena& arena, const Request& given) {
  if (!Grants(arena, given)) return false;
  Dequeue(given);
  return true;
}

// A client that evicts and fills its empty arena again, in passes as in training: what it makes
// first it needs last, and that leaves first. At the arena's beginning it would lie at the one end
// and the room that is left at the other, beside what leaves last. In the middle what follows goes
// round, and the room that is left comes to lie just before it.
bool Planner::State::RestartsLayout(const ClientArena& arena, Bytes size) const {
  if (now_ >= arena.pressure_until || !Uses(Heuristic::kRingLayout)) return false;
  const Bytes held = arena.space.held();
  const Bytes hole = arena.space.LargestHole();
  const bool empty = hole + arena.used.least() + Bytes(held.count() / kEmptyShare) >= held;
  return empty && size.count() * kEmptyShare <= hole.count() &&
         arena.ready.count() * kReadyShare <= hole.count();
}

ExtentMap::Block Planner::State::PlaceFor(ClientArena& arena, Bytes size, bool stays) const {
  if (stays) {
    const auto place = arena.space.AllocateHighest(size, 0);
    RAVEN_CHECK(place.has_value());
    return *place;
  }
  const bool restarts = RestartsLayout(arena, size);
  auto place = restarts           ? arena.space.AllocateInMiddle(size, 0)
               : arena.next_place ? arena.space.AllocateAt(*arena.next_place, size, 0)
                                  : std::nullopt;
  if (!place) place = arena.space.Allocate(size, 0);
  RAVEN_CHECK(place.has_value());
  if (restarts || arena.next_place)
    arena.next_place = arena.space.OffsetOf(*place) + arena.space.SizeOf(*place);
  return *place;
}

bool Planner::State::Grants(ClientArena& arena, const Request& request) {
  if (arena.space.LargestHole() < request.size) return false;
  Client& client = *FindClient(request.client);
  LogicalUse logical;
  client.predictor.Created(request.name, request.size, &logical, now_);
  // What stays in use parts what could leave together, wherever it lies.
  const bool stays = now_ < arena.pressure_until && client.predictor.StaysInUse(logical);
  const ExtentMap::Block block = PlaceFor(arena, request.size, stays);
  SetAllocationPhase(arena, true);
  arena.used.Add(arena.space.used());
  arena.wanted_until = now_ + kWantsMoreFor;
  arena.ready = std::max(request.size, Bytes(arena.ready.count() / kReadyFor * (kReadyFor - 1)));
  TensorRow& tensor = catalog_.Add();
  tensor.logical = logical;
  tensor.size = request.size;
  tensor.client = request.client;
  tensor.slot = request.slot;
  tensor.name = request.name;
  tensor.home.pool = PoolOf(request.device);
  tensor.home.block = block;
  tensor.in_use = false;
  SetInUse(tensor, true);
  arena.space.SetOwner(block, Catalog::RowOf(tensor.id));
  client.slots.Set(tensor.slot, Catalog::RowOf(tensor.id));
  client.predictor.FollowCreate(tensor, client.slots, now_, &changes_);
  WriteChanges();
  const Bytes before = arena.live;
  arena.live += tensor.size;
  arena.lived.Add(arena.live);
  arena.cycle.Created(before, arena.live, arena.lived, VirtualTime(arena));
  Count(request.client, &PlannerStats::creates, 1);
  plan_->push_back(AllocReply{request.client, request.slot, tensor.id, request.device,
                              arena.space.OffsetOf(block)});
  return true;
}

void Planner::State::SetAllocationPhase(ClientArena& arena, bool allocation_phase) {
  if (arena.allocation_phase == allocation_phase) return;
  arena.allocation_phase = allocation_phase;
  uint32_t& all = devices_[ToInt(arena.device)].allocating;
  all = allocation_phase ? all + 1 : all - 1;
}

void Planner::State::TakeBack(ClientArena& arena) {
  arena.fetch_phase = true;
  SetAllocationPhase(arena, false);
  arena.next_place.reset();
}

void Planner::State::NotePressure(ClientArena& arena, Bytes need) {
  arena.pressure_until = now_ + kPressureWindow;
  const size_t device = ToInt(arena.device);
  switch (BindingFor(arena, need)) {
    case Limit::kClient: break;
    case Limit::kTenant:
      tenants_.at(FindClient(arena.client)->tenant).device_full_until[device] =
          arena.pressure_until;
      break;
    case Limit::kPool: devices_[device].full_until = arena.pressure_until; break;
  }
}

bool Planner::State::TryFetch(ClientArena& arena, const Request& given) {
  const auto block = arena.space.Allocate(given.size, Catalog::RowOf(given.tensor));
  if (!block) return false;
  TensorRow& tensor = *catalog_.Find(given.tensor);
  Dequeue(given);
  tensor.waiting = false;
  ArenaOf(tensor)->live -= tensor.size;
  arena.live += tensor.size;
  tensor.home.pool = arena.pool();
  tensor.home.block = *block;
  const bool recompute = tensor.state() == TensorState::kDiscarded;
  if (recompute) {
    Catalog::Commit(tensor, TensorState::kResident);
    Count(tensor.client, &PlannerStats::recomputes, 1);
  } else {
    StartCopyIn(tensor, true);
  }
  SetInUse(tensor, true);
  SetStreamComplete(tensor, false);
  plan_->push_back(FetchReply{tensor.id, tensor.device(), arena.space.OffsetOf(*block),
                              /*arriving=*/!recompute, recompute});
  return true;
}

void Planner::State::StartCopyIn(TensorRow& tensor, bool demand) {
  copies_.Begin(LaneOf(tensor), Way::kIn, tensor.size);
  Count(tensor.client, &PlannerStats::in, tensor.size);
  Catalog::Commit(tensor, TensorState::kArriving);
  Repin(tensor);
  if (!demand) tensor.prefetched = true;
  if (demand) BeginWait(tensor.client);
  ProposeMove(tensor, Way::kIn, Move::Source::kStays, demand);
}

bool Planner::State::MakeRoom(ClientArena& arena, const Request& request) {
  // One thing at a time: what is under way may suffice. But slabs come while others are emptied.
  const bool adding = arena.space.awaited() > Bytes{0};
  if (adding && !arena.taking) return true;
  const Bytes need = request.size.RoundUp(kExtentAlignment);
  // A limit was lowered, or the fetch is on a smaller device: all that left would leave in vain.
  if (need > MostOf(arena)) return false;
  if (!adding && AddSlabFor(arena, need) && !arena.taking) return true;
  if (arena.taking) {
    const CopyLedger::Lane next = NextLane(arena);
    if (copies_.HasEnough(next) && !copies_.IsGuaranteed(next, Way::kOut, Bytes{0})) {
      taking_held_ = true;
      return true;
    }
  } else if (arena.leaving > arena.leaving_slabs || arena.relocating) {
    EvictAhead(arena, request);
    return true;
  }
  if (!request.fail_fast && !MaySearch(arena)) return true;
  if (WaitsForFrees(arena, request)) return true;
  arena.next_place.reset();
  if (!request.is_fetch()) arena.fetch_phase = false;
  NotePressure(arena, need);
  active_arenas_.insert(&arena);
  if (FindVictims(arena, need) || AddSlabAndEvictFor(arena, need)) {
    if (request.is_fetch() && arena.copying_out > 0) arena.short_until = now_ + kShortFor;
    return true;
  }
  if (now_ < arena.reclaim_after) return false;
  if (TakeSlabsFor(arena, need) || EmptySlabsFor(arena, need) ||
      TakeSlabsFor(arena, need, {}, Take::kSome)) {
    arena.reclaim_wait = {};
    return true;
  }
  arena.reclaim_wait = std::clamp(arena.reclaim_wait * 2, RetryAfter(), kReclaimRetryMax);
  arena.reclaim_after = now_ + arena.reclaim_wait;
  return false;
}

// A create that waits for copies is followed by another: the link goes on meanwhile with what
// leaves next.
void Planner::State::EvictAhead(ClientArena& arena, const Request& request) {
  if (request.is_fetch() || arena.copying_out == 0 || request.size > copies_.AheadMost()) return;
  if (!Uses(Heuristic::kEvictAhead)) return;
  if (copies_.HasEnough(NextLane(arena)) || !MaySearch(arena)) return;
  const uint64_t searched = SearchedFor(arena);
  if (!EvictRun(arena, request.size.RoundUp(kExtentAlignment),
                {.useful = GrowthOf(arena, request.size)}, RedundantCopies::kKeep))
    BackOffSearch(arena, searched);
}

// What a client that takes tensor after tensor will want: up to the most that lived lately; beyond
// what is not known, but several times what it wants now.
Bytes Planner::State::GrowthOf(const ClientArena& arena, Bytes need) const {
  const Bytes growth = Minus(arena.lived.most(), arena.live);
  return growth >= need ? growth : need * kUsefulExcess;
}

bool Planner::State::MaySearch(ClientArena& arena) {
  if (now_ >= arena.search_after) return true;
  wakes_.ArmBy(arena, arena.search_after);
  return false;
}

void Planner::State::BackOffSearch(ClientArena& arena, uint64_t searched_before) {
  const uint64_t searched = SearchedFor(arena) - searched_before;
  if (searched <= kBlocksForNothing) return;
  arena.search_after = now_ + kBackoffPerBlock * static_cast<int64_t>(searched);
}

bool Planner::State::IsLarge(const ClientArena& arena, Bytes need) const {
  if (requests_.Waiting(arena) == 0 || requests_.First(arena).is_fetch()) return false;
  if (need.count() * kGrowthShare < arena.space.held().count()) return false;
  return arena.index->IsHinted() && Uses(Heuristic::kCopiesOfLarge);
}

bool Planner::State::FindVictims(ClientArena& arena, Bytes need) {
  if (TakeGuaranteed(arena, need)) return true;
  // With nothing changed there are none again; but a back-off ends by itself.
  const bool backing_off = now_ < arena.backoff_until || now_ < host_backoff_until_;
  if (!backing_off && arena.no_run == std::pair(ChangesFor(arena), need)) return false;
  const uint64_t searched = SearchedFor(arena);
  const bool wants_more = arena.allocation_phase && Uses(Heuristic::kUsefulRoom);
  const bool large = IsLarge(arena, need);
  const EvictionIndex::Limits any{.useful = wants_more ? GrowthOf(arena, need) : need,
                                  .large = large};
  const auto run =
      arena.index->FindRun(arena.space.map(), need, VirtualTime(arena), LinksOf(arena.device), any);
  // Slabs of others whose eviction costs less serve a large request.
  if (need >= SlabSize(arena) && clients_.size() > 1 && Uses(Heuristic::kSlabsOfOthers) &&
      TakeSlabsFor(arena, need, RelocationCostLimit(arena, run), Take::kOthers))
    return true;
  if (EvictAll(arena, run, RedundantCopies::kKeep)) return true;
  // The host may have no room for the best victims: then those that need none there, and only then
  // at the cost of copies that make others clean.
  const EvictionIndex::Limits clean{.clean_only = true, .later_than = nullptr, .large = large};
  if (EvictRun(arena, need, clean, RedundantCopies::kKeep)) return true;
  if (EvictRun(arena, need, {.large = large}, RedundantCopies::kMayDrop)) return true;
  if (!backing_off) arena.no_run = {ChangesFor(arena), need};
  BackOffSearch(arena, searched);
  return false;
}

// What others can give changes without a change of the arena.
bool Planner::State::TakeGuaranteed(ClientArena& arena, Bytes need) {
  if (now_ < arena.reclaim_after || !quota_.IsWithinGuarantee(arena.client, arena.pool(), need))
    return false;
  // Else their client could rescue them by gets for as long as it likes.
  irrevocable_ = true;
  const bool taken = TakeSlabsFor(arena, need, {}, Take::kOtherTenants);
  irrevocable_ = false;
  return taken;
}

// The cost of the run, less what moving slabs takes.
SlabCostLimit Planner::State::RelocationCostLimit(const ClientArena& arena,
                                                  const std::vector<uint32_t>& run) const {
  if (run.empty()) return {};
  const Tick virtual_time = VirtualTime(arena);
  const AwayLinks links = LinksOf(arena.device);
  double cost = 0;
  double plain = 0;
  Duration copies{0};
  for (const uint32_t row : run) {
    cost += arena.index->EvictionCost(catalog_[row], virtual_time, links);
    plain += arena.index->UnweightedCost(catalog_[row], virtual_time, links);
    copies += BothCopies(links.Of(catalog_[row]), catalog_[row].size);
  }
  return {cost * (1 - Seconds(kSlabMove) / Seconds(copies)), cost / plain};
}

bool Planner::State::EvictRun(ClientArena& arena, Bytes need, const EvictionIndex::Limits& limits,
                              RedundantCopies redundant) {
  return EvictAll(arena,
                  arena.index->FindRun(arena.space.map(), need, VirtualTime(arena),
                                       LinksOf(arena.device), limits),
                  redundant);
}

bool Planner::State::EvictAll(ClientArena& arena, const std::vector<uint32_t>& rows,
                              RedundantCopies redundant) {
  // Taken out of the books' reach first, so that room on the host for one is not made by discarding
  // the host copy of another.
  for (const uint32_t row : rows) {
    TensorRow& tensor = catalog_[row];
    if (tensor.state() == TensorState::kCleaning) continue;
    Catalog::Commit(tensor, TensorState::kChosen);
    arena.index->Erase(tensor);
  }
  const bool all = std::all_of(rows.begin(), rows.end(), [&](uint32_t row) {
    TensorRow& tensor = catalog_[row];
    if (CanDrop(tensor)) return true;
    return now_ >= arena.backoff_until && AllocateAway(tensor, redundant, Leaving::kNow);
  });
  for (const uint32_t row : rows) {
    TensorRow& tensor = catalog_[row];
    if (all) {
      Evict(arena, tensor);
      continue;
    }
    if (tensor.state() == TensorState::kCleaning) continue;
    Catalog::Commit(tensor, TensorState::kResident);
    if (tensor.dirty()) {
      FreeAway(tensor);
    } else {
      NoteRedundantCopy(tensor);
    }
    Reindex(tensor);
  }
  return all && !rows.empty();
}

void Planner::State::Evict(ClientArena& arena, TensorRow& tensor) {
  ++arena.leaving;
  arena.index->Evicted(tensor);
  if (tensor.state() == TensorState::kCleaning) {
    ++arena.copying_out;
    Catalog::Commit(tensor, TensorState::kCleaningToLeave);
    plan_->push_back(
        Prioritize{tensor.id, arena.device, Behalf(tensor), LeavesIrrevocably(arena, tensor)});
    return;
  }
  if (CanDrop(tensor)) {
    Catalog::Commit(tensor,
                    tensor.needs_copy() ? TensorState::kDiscarding : TensorState::kDropping);
    plan_->push_back(Drop{tensor.id});
  } else {
    StartCopyOut(arena, tensor,
                 LeavesIrrevocably(arena, tensor) ? Move::Source::kLeavesIrrevocably
                                                  : Move::Source::kLeaves);
  }
}

bool Planner::State::LeavesIrrevocably(const ClientArena& arena, const TensorRow& tensor) const {
  if (irrevocable_) return true;
  if (tensor.size < options_.incremental_from || requests_.Waiting(arena) == 0) return false;
  return tensor.size.count() >= kIncrementalWorth * requests_.First(arena).size.count();
}

void Planner::State::LeaveSlab(ClientArena& arena, TensorRow& tensor) {
  tensor.drains = true;
  ++arena.leaving_slabs;
}

void Planner::State::EndLeaving(ClientArena& arena, TensorRow& tensor) {
  --arena.leaving;
  if (!tensor.drains) return;
  tensor.drains = false;
  --arena.leaving_slabs;
}

bool Planner::State::BringAway(TensorRow& tensor) {
  if (tensor.residency() == Residency::kAway) return true;
  if (tensor.state() != TensorState::kResident || !tensor.stream_complete) return false;
  if (!tensor.dirty()) {
    FreeDevice(tensor);
    Catalog::Commit(tensor, TensorState::kAway);
    return true;
  }
  ClientArena& arena = *ArenaOf(tensor);
  if (now_ < arena.backoff_until || !AllocateAway(tensor, RedundantCopies::kMayDrop, Leaving::kNow))
    return false;
  ++arena.leaving;
  StartCopyOut(arena, tensor, Move::Source::kIsHeld);
  return false;
}

void Planner::State::StartCopyOut(ClientArena& arena, TensorRow& tensor, Move::Source source) {
  ++arena.copying_out;
  Catalog::Commit(tensor, TensorState::kCopyingOut);
  BeginCopyOut(tensor);
  ProposeMove(tensor, Way::kOut, source, true);
}

void Planner::State::BeginCopyOut(TensorRow& tensor) {
  tensor.put_seen = false;
  copies_.Begin(LaneOf(tensor), Way::kOut, tensor.size);
  Count(tensor.client, &PlannerStats::out, tensor.size);
}

void Planner::State::ProposeMove(const TensorRow& tensor, Way way, Move::Source source,
                                 bool demand) {
  const Place home{tensor.home.pool, ArenaOf(tensor)->space.OffsetOf(tensor.home.block)};
  const Place away{tensor.away.pool, away_[tensor.away.pool].OffsetOf(tensor.away.block)};
  const bool leaves = way == Way::kOut;
  plan_->push_back(Move{tensor.id, leaves ? home : away, leaves ? away : home, tensor.size, source,
                        demand, leaves && demand ? Behalf(tensor) : tensor.client});
}

void Planner::State::EndCopyOut(const TensorRow& tensor) {
  copies_.End(LaneOf(tensor), Way::kOut, tensor.size);
  AwayRoomCame();
  if (std::exchange(taking_held_, false)) TouchWaiting();
  TouchFetch(tensor);
}

}  // namespace ravenstore::core
