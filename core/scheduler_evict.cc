// What leaves a device to make room, and the copies that begin.
#include <algorithm>

#include "core/scheduler.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {
// The backoff after a search that found nothing, for every block that it looked at: some ten times
// what that takes. So many are no matter.
constexpr Duration kBackoffPerBlock = std::chrono::nanoseconds(64);
constexpr uint64_t kBlocksForNothing = 256;
}  // namespace

void Scheduler::StartCopyIn(TensorRow& tensor, bool demand) {
  copies_.Begin(LaneOf(tensor), Way::kIn, tensor.size);
  Count(tensor.client, &PlannerStats::in, tensor.size);
  Catalog::Commit(tensor, TensorState::kArriving);
  Repin(tensor);
  if (!demand) tensor.prefetched = true;
  if (demand) BeginWait(tensor.client);
  ProposeMove(tensor, Way::kIn, Move::Source::kStays, demand);
}

// A create that waits for copies is followed by another: the link goes on meanwhile with what
// leaves next. What is large would keep it from what comes later, and goes over another one.
void Scheduler::EvictAhead(ClientArena& arena, const Request& request) {
  if (request.is_fetch() || arena.copying_out == 0 || !Uses(Heuristic::kEvictAhead)) return;
  const bool large = request.size > copies_.AheadMost();
  if (large ? !IsNextLinkIdle(arena, request.size) : copies_.HasEnough(NextLane(arena))) return;
  if (!MaySearch(arena)) return;
  const uint64_t searched = SearchedFor(arena);
  if (!EvictRun(arena, request.size.RoundUp(kExtentAlignment),
                {.useful = GrowthOf(arena, request.size)}, RedundantCopies::kKeep))
    BackOffSearch(arena, searched);
}

// Nor is any that is busy faster: what is near would lie far away.
bool Scheduler::IsNextLinkIdle(const ClientArena& arena, Bytes size) const {
  const PoolId next = NextLane(arena, size).pool;
  const Duration cost = topology_.Cost(arena.pool(), next, size);
  return std::all_of(away_.begin(), away_.end(), [&](const auto& pool) {
    const bool busy = copies_.Of(arena.device, pool.first, Way::kOut).copies > 0;
    return !busy || (pool.first != next && topology_.Cost(arena.pool(), pool.first, size) >= cost);
  });
}

// What a client that takes tensor after tensor will want: up to the most that lived lately; beyond
// what is not known, but several times what it wants now.
Bytes Scheduler::GrowthOf(const ClientArena& arena, Bytes need) const {
  const Bytes growth = Minus(arena.lived.most(), arena.live);
  return growth >= need ? growth : need * kUsefulExcess;
}

bool Scheduler::MaySearch(ClientArena& arena) {
  if (now_ >= arena.search_after) return true;
  wakes_.ArmBy(arena, arena.search_after);
  return false;
}

void Scheduler::BackOffSearch(ClientArena& arena, uint64_t searched_before) {
  const uint64_t searched = SearchedFor(arena) - searched_before;
  if (searched <= kBlocksForNothing) return;
  arena.search_after = now_ + kBackoffPerBlock * static_cast<int64_t>(searched);
}

bool Scheduler::IsLarge(const ClientArena& arena, Bytes need) const {
  if (requests_.Waiting(arena) == 0 || requests_.First(arena).is_fetch()) return false;
  if (need.count() * kGrowthShare < arena.space.held().count()) return false;
  return arena.index->IsHinted() && Uses(Heuristic::kCopiesOfLarge);
}

bool Scheduler::FindVictims(ClientArena& arena, Bytes need) {
  if (TakeDue(arena, need)) return true;
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
bool Scheduler::TakeDue(ClientArena& arena, Bytes need) {
  if (now_ < arena.reclaim_after || !quota_.IsDue(arena.client, arena.pool(), need)) return false;
  // Else their client could rescue them by gets for as long as it likes.
  irrevocable_ = true;
  const bool taken = TakeSlabsFor(arena, need, {}, Take::kOtherTenants);
  irrevocable_ = false;
  return taken;
}

// The cost of the run, less what moving slabs takes.
SlabCostLimit Scheduler::RelocationCostLimit(const ClientArena& arena,
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

bool Scheduler::EvictRun(ClientArena& arena, Bytes need, const EvictionIndex::Limits& limits,
                         RedundantCopies redundant) {
  return EvictAll(arena,
                  arena.index->FindRun(arena.space.map(), need, VirtualTime(arena),
                                       LinksOf(arena.device), limits),
                  redundant);
}

bool Scheduler::EvictAll(ClientArena& arena, const std::vector<uint32_t>& rows,
                         RedundantCopies redundant) {
  // Taken out of the books' reach first, so that room on the host for one is not made by discarding
  // the host copy of another.
  for (const uint32_t row : rows) {
    TensorRow& tensor = catalog_[row];
    if (tensor.state() == TensorState::kCleaning) continue;
    Catalog::Commit(tensor, TensorState::kChosen);
    arena.index->Erase(tensor);
  }
  const auto unplaced = std::find_if_not(rows.begin(), rows.end(), [&](uint32_t row) {
    return PlaceToLeave(arena, catalog_[row], redundant);
  });
  const bool all = unplaced == rows.end();
  for (auto row = rows.begin(); row != rows.end(); ++row) {
    TensorRow& tensor = catalog_[*row];
    if (all) {
      Evict(arena, tensor);
      continue;
    }
    if (tensor.state() == TensorState::kCleaning) continue;
    if (row < unplaced && !CanDrop(tensor)) copies_.End(LaneOf(tensor), Way::kOut, tensor.size);
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

bool Scheduler::PlaceToLeave(const ClientArena& arena, TensorRow& tensor,
                             RedundantCopies redundant) {
  if (CanDrop(tensor)) return true;
  if (now_ < arena.backoff_until) return false;
  return tensor.state() == TensorState::kCleaning || PlaceCopyOut(tensor, redundant, Leaving::kNow);
}

void Scheduler::Evict(ClientArena& arena, TensorRow& tensor) {
  ++arena.leaving;
  arena.index->Evicted(tensor);
  if (tensor.state() == TensorState::kCleaning) {
    ++arena.copying_out;
    Catalog::Commit(tensor, TensorState::kCleaningToLeave);
    plan_->push_back(Prioritize{NameOf(tensor), arena.device, tensor.away.pool, Behalf(tensor),
                                LeavesIrrevocably(arena, tensor)});
    return;
  }
  if (CanDrop(tensor)) {
    Catalog::Commit(tensor,
                    tensor.needs_copy() ? TensorState::kDiscarding : TensorState::kDropping);
    plan_->push_back(Drop{NameOf(tensor)});
  } else {
    StartCopyOut(arena, tensor,
                 LeavesIrrevocably(arena, tensor) ? Move::Source::kLeavesIrrevocably
                                                  : Move::Source::kLeaves);
  }
}

bool Scheduler::LeavesIrrevocably(const ClientArena& arena, const Object& object) const {
  if (irrevocable_) return true;
  if (object.size < options_.incremental_from || requests_.Waiting(arena) == 0) return false;
  return object.size.count() >= kIncrementalWorth * requests_.First(arena).size.count();
}

void Scheduler::LeaveSlab(ClientArena& arena, Object& object) {
  object.drains = true;
  ++arena.leaving_slabs;
}

void Scheduler::EndLeaving(ClientArena& arena, Object& object) {
  --arena.leaving;
  if (!object.drains) return;
  object.drains = false;
  --arena.leaving_slabs;
}

bool Scheduler::BringAway(TensorRow& tensor) {
  if (tensor.state() == TensorState::kMovingOn) return false;
  if (tensor.residency() == Residency::kAway) return true;
  if (tensor.state() != TensorState::kResident || !tensor.stream_complete) return false;
  if (!tensor.dirty()) {
    FreeDevice(tensor);
    Catalog::Commit(tensor, TensorState::kAway);
    return true;
  }
  ClientArena& arena = *ArenaOf(tensor);
  if (now_ < arena.backoff_until || !PlaceCopyOut(tensor, RedundantCopies::kMayDrop, Leaving::kNow))
    return false;
  ++arena.leaving;
  StartCopyOut(arena, tensor, Move::Source::kIsHeld);
  return false;
}

void Scheduler::StartCopyOut(ClientArena& arena, TensorRow& tensor, Move::Source source) {
  ++arena.copying_out;
  Catalog::Commit(tensor, TensorState::kCopyingOut);
  BeginCopyOut(tensor);
  ProposeMove(tensor, Way::kOut, source, true);
}

void Scheduler::BeginCopyOut(TensorRow& tensor) {
  tensor.put_seen = false;
  Count(tensor.client, &PlannerStats::out, tensor.size);
}

void Scheduler::ProposeMove(const TensorRow& tensor, Way way, Move::Source source, bool demand) {
  const Place home = HomeOf(tensor);
  const Place away = AwayOf(tensor);
  const bool leaves = way == Way::kOut;
  plan_->push_back(Move{NameOf(tensor), leaves ? home : away, leaves ? away : home, tensor.size,
                        source, demand, leaves && demand ? Behalf(tensor) : tensor.client});
}

void Scheduler::EndCopyOut(const TensorRow& tensor) {
  copies_.End(LaneOf(tensor), Way::kOut, tensor.size);
  AwayRoomCame();
  if (std::exchange(taking_held_, false)) TouchWaiting();
  TouchFetch(tensor);
}

}  // namespace ravenstore::core
