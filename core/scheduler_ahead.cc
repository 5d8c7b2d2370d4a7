// What is proposed before anybody asks: prefetch and pre-cleaning.
#include <algorithm>

#include "core/scheduler.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {
constexpr int kPrefetchesPerServe = 8;
constexpr int kCleansPerServe = 8;
// Blocks of a run that is copied out ahead.
constexpr size_t kReadyBlocks = 256;
}  // namespace

TensorRow* Scheduler::NextDue(const ClientArena& arena, const PoolSet& pools) {
  SoonestUses soonest;
  for (const auto& [id, pool] : away_) {
    if (pools[ToInt(id)]) soonest.Add(arena.due[ToInt(id)]);
  }
  const DueTensors::Use* best = soonest.Best();
  return best == nullptr ? nullptr : catalog_.Find(best->second);
}

void Scheduler::Prefetch(ClientArena& arena) {
  if (!options_.prefetch || !arena.fetch_phase || ExcessOf(arena) > Bytes{0}) return;
  PoolSet pools;  // whose links have room
  pools.set();
  for (int i = 0; i < kPrefetchesPerServe; ++i) {
    if (arena.leaving > arena.leaving_slabs || arena.space.awaited() > Bytes{0})
      return;  // room is being made: look again then
    TensorRow* next = NextDue(arena, pools);
    if (next == nullptr) return;
    if (arena.index->IsRefuted(*next)) {
      if (Forecast::IsAssumed(next->use_key)) return;  // it may hold again
      Unlist(*next);
    } else if (!copies_.MayBegin(LaneOf(*next), Way::kIn, next->size)) {
      pools[ToInt(next->away.pool)] = false;
    } else if (!PrefetchNext(arena, *next)) {
      return;
    }
  }
}

bool Scheduler::PrefetchNext(ClientArena& arena, const TensorRow& next) {
  const auto block = arena.space.Allocate(next.size, Catalog::RowOf(next.id));
  if (!block) {
    if (!MaySearch(arena)) return false;
    const uint64_t searched = SearchedFor(arena);
    // Only what is needed later, and leaves without a copy, makes way.
    EvictionIndex::Limits limits;
    limits.clean_only = true;
    limits.later_than = &next;
    const Tick virtual_time = VirtualTime(arena);
    const AwayLinks links = LinksOf(arena.device);
    const auto run = arena.index->FindRun(arena.space.map(), next.size.RoundUp(kExtentAlignment),
                                          virtual_time, links, limits);
    // What is dirty and needed later still should make way the next time.
    const TensorRow& sooner = run.empty() ? next : catalog_[run.front()];
    const auto dirty = arena.index->FarthestDirty(virtual_time, links);
    if (dirty && arena.index->IsLater(catalog_[*dirty], sooner))
      arena.short_until = now_ + kShortFor;
    if (!EvictAll(arena, run, RedundantCopies::kKeep)) BackOffSearch(arena, searched);
    return false;  // the answers to the drops bring us back
  }
  TensorRow& tensor = *catalog_.Find(next.id);
  Unlist(tensor);
  tensor.home.block = *block;
  Count(tensor.client, &PlannerStats::prefetches, 1);
  StartCopyIn(tensor, false);
  return true;
}

// By a hint, or learned; what is only assumed does not count.
bool Scheduler::KnowsAhead(const Holding& holding) {
  if (holding.use_kind != UseKind::kLearned) return holding.use_kind != UseKind::kUnknown;
  return !Forecast::IsAssumed(holding.use_key);
}

// A client that says what it needs when, and makes tensors, will be pressed soon if it once needed
// all that it may have, or if it never needed more than now: where that ends is not known yet.
bool Scheduler::MayOutgrow(const ClientArena& arena) const {
  if (!arena.allocation_phase || !Uses(Heuristic::kCleanBeforePressure)) return false;
  const Bytes most = arena.lived.most();
  return arena.live >= most || most >= quota_.BudgetsOf(arena.client).device;
}

void Scheduler::Preclean(ClientArena& arena) {
  if (!options_.preclean || now_ < arena.backoff_until) return;
  if (now_ >= arena.pressure_until && !MayOutgrow(arena)) return;
  const auto is_short = [this](const auto& pool) { return now_ < pool.second.short_until; };
  if (std::all_of(away_.begin(), away_.end(), is_short)) return;
  // What a request waits for goes first, and what its client will want next: one that creates
  // tensor after tensor leaves the link no idle time.
  if (requests_.Waiting(arena) > 0) return;
  if (now_ < arena.wanted_until && Uses(Heuristic::kCleanWhenIdle)) {
    wakes_.ArmBy(arena, arena.wanted_until);
    return;
  }
  const bool fetching = now_ < arena.short_until && Uses(Heuristic::kCleanWhenFetching);
  if (!arena.allocation_phase && !fetching) return;
  active_arenas_.insert(&arena);
  for (int i = 0; i < kCleansPerServe; ++i) {
    if (!CleanNextRun(arena)) return;
  }
}

// Runs, not tensors: room must be contiguous, and one that is dirty among the clean spoils it.
bool Scheduler::CleanNextRun(ClientArena& arena) {
  const Tick virtual_time = VirtualTime(arena);
  const auto seed = arena.index->FarthestDirty(virtual_time, LinksOf(arena.device));
  if (!seed) return false;
  // Of what may be used, and written, before it leaves not all need be clean.
  if (!KnowsAhead(catalog_[*seed]) &&
      static_cast<double>(arena.index->clean_bytes().count()) >=
          (1 - kUncleanPart) * static_cast<double>(arena.space.held().count()))
    return false;
  if (!CleanAhead(arena, catalog_[*seed])) return false;
  if (!Uses(Heuristic::kCleanRuns)) return true;
  const EvictionIndex::Limits limits{.blocks = kReadyBlocks};
  for (const uint32_t row : arena.index->RunAround(arena.space.map(), *seed, arena.ready,
                                                   virtual_time, LinksOf(arena.device), limits)) {
    TensorRow& tensor = catalog_[row];
    if (!EvictionIndex::Contains(tensor) || !tensor.dirty()) continue;
    if (tensor.never || tensor.recompute > 0) continue;
    if (!CleanAhead(arena, tensor)) return false;
  }
  return true;
}

bool Scheduler::CleanAhead(ClientArena& arena, TensorRow& tensor) {
  const bool under_pressure = now_ < arena.pressure_until;
  if (!under_pressure && (!KnowsAhead(tensor) || !HostHasHeadroom(tensor.size))) return false;
  if (!PlaceCopyOut(tensor, RedundantCopies::kKeep, Leaving::kAhead)) return false;
  Catalog::Commit(tensor, TensorState::kCleaning);
  arena.index->BeginCleaning(tensor);
  Reindex(tensor);
  BeginCopyOut(tensor);
  ProposeMove(tensor, Way::kOut, Move::Source::kStays, false);
  return true;
}

}  // namespace ravenstore::core
