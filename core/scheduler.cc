#include "core/scheduler.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {
constexpr Duration kRetryPerWaiting = std::chrono::microseconds(20);
// Among many the looks themselves are a tenth of the time at most.
constexpr Duration kRetryAmongMany = std::chrono::microseconds(160);
// What the client has put and freed before it asked is known by then.
constexpr Duration kStuckFor = std::chrono::milliseconds(2);
// Requests of any client that are answered in one go.
constexpr size_t kAnswersPerPass = 1024;
}  // namespace

void Scheduler::Fail(const Request& given, ErrorCode code, const std::string& message) {
  const Request request = Dequeue(given);
  if (!request.is_fetch()) {
    plan_->push_back(AllocError{request.client, request.slot, {code, message}});
    return;
  }
  TensorRow* tensor = catalog_.Find(request.tensor);
  tensor->waiting = false;
  List(*tensor);
  Reindex(*tensor);  // it may still be on the device that it was to leave
  const bool on_device = tensor->residency() == Residency::kOnDevice;
  plan_->push_back(FetchError{
      NameOf(*tensor), {code, message}, on_device ? std::optional(HomeOf(*tensor)) : std::nullopt});
}

void Scheduler::FailForRoom(const Request& request) {
  ClientArena* arena = ArenaOf(request);
  if (arena != nullptr) arena->refused_in_pieces = IsInPieces(*arena, request);
  if (arena != nullptr && !arena->limit.empty())
    return Fail(request, ErrorCode::kLimit, arena->limit);
  Fail(request, ErrorCode::kOutOfMemory, DescribeHolders(request));
}

Duration Scheduler::RetryAfter() const {
  const auto waiting = static_cast<int64_t>(requests_.lines().size());
  return std::max(kRetry + kRetryPerWaiting * waiting, kRetryAmongMany * waiting);
}

uint64_t Scheduler::ChangesFor(const ClientArena& arena) const {
  uint64_t changes = arena.space.changes() + arena.index->changes() + redundant_copies_noted_;
  for (const auto& [id, pool] : away_) changes += pool.changes();
  return changes;
}

void Scheduler::ServeTouched() {
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

void Scheduler::Serve(ClientArena& arena) {
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
    if (StartsAnew(arena, request)) break;
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

bool Scheduler::HelpIsNear(const ClientArena& arena) const {
  return arena.space.awaited() > Bytes{0} || (arena.leaving > 0 && arena.copying_out == 0);
}

void Scheduler::FailFastRequests(ClientArena& arena) {
  while (answered_ < kAnswersPerPass) {
    const Request* request = requests_.FirstFailingFast(arena);
    if (request == nullptr) return;
    FailForRoom(*request);
  }
}

bool Scheduler::WaitsInVain(const ClientArena& arena) const {
  if (requests_.Waiting(arena) == 0) return false;
  const auto& resort = arena.last_resort;
  return resort.request == requests_.First(arena).id && !resort.hope &&
         now_ >= resort.since + kStuckFor;
}

bool Scheduler::IsStuck(ClientArena& arena, const Request& request) {
  if (!WaitsInVain(arena)) return false;
  if (arena.leaving > 0 || arena.space.awaited() > Bytes{0}) return false;
  if (!arena.space.closed().empty() || !arena.space.removals().empty()) return false;
  const bool others = clients_.size() > 1 && BindingFor(arena, request.size) != Limit::kClient;
  if (others && !IsInPieces(arena, request)) return false;
  // What could leave may wait for room elsewhere.
  if (!MaySearch(arena)) return false;
  const uint64_t searched = SearchedFor(arena);
  const auto run = arena.index->FindRun(arena.space.map(), request.size.RoundUp(kExtentAlignment),
                                        VirtualTime(arena), LinksOf(arena.device), {});
  BackOffSearch(arena, searched);
  return run.empty();
}

bool Scheduler::StartsAnew(ClientArena& arena, const Request& request) {
  if (!std::exchange(arena.refused_in_pieces, false)) return false;
  return EmptySlabsFor(arena, request.size.RoundUp(kExtentAlignment));
}

bool Scheduler::TryServe(ClientArena& arena, const Request& request) {
  return request.is_fetch() ? TryFetch(arena, request) : TryCreate(arena, request);
}

bool Scheduler::TryCreate(ClientArena& arena, const Request& given) {
  if (!Grants(arena, given)) return false;
  Dequeue(given);
  return true;
}

// A client that evicts and fills its empty arena again, in passes as in training: what it makes
// first it needs last, and that leaves first. At the arena's beginning it would lie at the one end
// and the room that is left at the other, beside what leaves last. In the middle what follows goes
// round, and the room that is left comes to lie just before it.
bool Scheduler::RestartsLayout(const ClientArena& arena, Bytes size) const {
  if (now_ >= arena.pressure_until || !Uses(Heuristic::kRingLayout)) return false;
  const Bytes held = arena.space.held();
  const Bytes hole = arena.space.LargestHole();
  const bool empty = hole + arena.used.least() + Bytes(held.count() / kEmptyShare) >= held;
  return empty && size.count() * kEmptyShare <= hole.count() &&
         arena.ready.count() * kReadyShare <= hole.count();
}

ExtentMap::Block Scheduler::PlaceFor(ClientArena& arena, const Request& request, bool stays) const {
  const Bytes size = request.size;
  // What stays in use parts what could leave together, wherever it lies: it gathers at one end.
  if (request.long_lived || stays) {
    const int holes =
        request.long_lived ? ExtentMap::kHolesForLongLived : ExtentMap::kHolesLookedAt;
    const auto place = arena.space.AllocateHighest(size, 0, holes);
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

bool Scheduler::Grants(ClientArena& arena, const Request& request) {
  if (arena.space.LargestHole() < request.size) return false;
  Client& client = *FindClient(request.client);
  LogicalUse logical;
  client.predictor.Created(request.name, request.size, &logical, now_);
  const bool stays = now_ < arena.pressure_until && client.predictor.StaysInUse(logical);
  const ExtentMap::Block block = PlaceFor(arena, request, stays);
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

void Scheduler::NotePressure(ClientArena& arena, Bytes need) {
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

bool Scheduler::TryFetch(ClientArena& arena, const Request& given) {
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
  plan_->push_back(FetchReply{NameOf(tensor), tensor.device(), arena.space.OffsetOf(*block),
                              /*arriving=*/!recompute, recompute});
  return true;
}

bool Scheduler::MakeRoom(ClientArena& arena, const Request& request) {
  // One thing at a time: what is under way may suffice. But slabs come while others are emptied.
  const bool adding = arena.space.awaited() > Bytes{0};
  if (adding && !arena.taking) return true;
  const Bytes need = request.size.RoundUp(kExtentAlignment);
  // A limit was lowered, or the fetch is on a smaller device: all that left would leave in vain.
  if (need > MostOf(arena)) return false;
  if (!adding && AddSlabFor(arena, need) && !arena.taking) return true;
  if (!adding && TakeHarvest(arena, need)) return true;
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
    arena.last_resort.hope = true;
    return true;
  }
  // Who comes after it goes on meanwhile, and may free what it lacks.
  if (WaitsInVain(arena)) quota_.EndReservation(arena.client, arena.pool());
  arena.reclaim_wait = std::clamp(arena.reclaim_wait * 2, RetryAfter(), kReclaimRetryMax);
  arena.reclaim_after = now_ + arena.reclaim_wait;
  return false;
}

Tick Scheduler::NextWake() const {
  return std::min(
      {next_poll_, requests_.NextDeadline(), wakes_.Next(), late_.Next(), overdue_.Next()});
}

}  // namespace ravenstore::core
