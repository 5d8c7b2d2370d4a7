#include "core/planner_books.h"

#include <algorithm>

#include "core/check.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {
PlannerOptions WithTopology(PlannerOptions options) {
  if (!options.topology.pools().empty()) return options;
  const std::vector<LinkModel> links(options.device_capacity.size());
  options.topology =
      DevicesAroundHost(options.device_capacity, options.host_capacity, options.granularity, links)
          .value();
  return options;
}
// Redundant copies discarded in one go when a pool is full.
constexpr int kCopiesPerDrop = 256;
}  // namespace

PlannerBooks::PlannerBooks(PlannerOptions options)
    : options_(WithTopology(std::move(options))),
      topology_(options_.topology),
      away_(&topology_, options_.device_capacity.size(), options_.host_capacity),
      copies_({.devices = options_.device_capacity.size(),
               .pools = topology_.pools().size(),
               .ahead = {options_.in_flight, options_.in_flight_copies},
               .demand = {options_.demand_bytes, options_.demand_copies},
               .guaranteed_part = options_.guaranteed_part}),
      quota_({.devices = options_.device_capacity,
              .host = options_.host_capacity,
              .others = away_.OtherCapacities(),
              .granularity = options_.granularity,
              .guaranteed_part = options_.guaranteed_part}),
      devices_(options_.device_capacity.size()) {
  RAVEN_CHECK(options_.arena.size() == options_.device_capacity.size());
}

PlannerBooks::Client* PlannerBooks::FindClient(ClientId client) {
  // One event asks for the same client several times, and several events come from each in turn.
  if (last_found_ != nullptr && last_found_->id == client) return last_found_;
  const auto found = clients_.find(client);
  if (found == clients_.end()) return nullptr;
  last_found_ = found->second.get();
  return last_found_;
}

TensorRow* PlannerBooks::FindTensor(TensorId id) {
  TensorRow* tensor = catalog_.Find(id);
  return tensor == nullptr || FindClient(tensor->client) == nullptr ? nullptr : tensor;
}

ClientArena* PlannerBooks::ArenaOf(const ArenaId& id) {
  Client* client = FindClient(id.client);
  const size_t device = ToInt(id.device);
  if (client == nullptr || device >= devices_.size()) return nullptr;
  auto& arena = client->arenas[device];
  if (arena == nullptr) {
    arena = std::make_unique<ClientArena>(id, options_.arena[device], topology_.pools().size(),
                                          &catalog_, &client->predictor.forecast(), options_.policy,
                                          options_.heuristics);
  }
  return arena.get();
}

template <typename Counter, typename Amount>
void PlannerBooks::Count(ClientId id, Counter counter, Amount amount) {
  stats_.*counter += amount;
  if (Client* client = FindClient(id)) client->stats.*counter += amount;
}
template void PlannerBooks::Count(ClientId, uint64_t PlannerStats::*, int);
template void PlannerBooks::Count(ClientId, Bytes PlannerStats::*, Bytes);
template void PlannerBooks::Count(ClientId, Duration PlannerStats::*, Duration);

void PlannerBooks::SetInUse(TensorRow& tensor, bool in_use) {
  if (tensor.in_use == in_use) return;
  tensor.in_use = in_use;
  Client* client = FindClient(tensor.client);
  if (client == nullptr) return;
  if (in_use) {
    client->in_use += tensor.size;
  } else {
    client->in_use -= tensor.size;
  }
  Repin(tensor);
}

void PlannerBooks::SetStreamComplete(TensorRow& tensor, bool stream_complete) {
  tensor.stream_complete = stream_complete;
  Repin(tensor);
}

void PlannerBooks::Repin(TensorRow& tensor) {
  const bool pinned = tensor.home.is_placed() && (tensor.in_use || !tensor.stream_complete);
  if (tensor.pinned == pinned) return;
  if (FindClient(tensor.client) == nullptr) return;
  tensor.pinned = pinned;
  if (pinned) {
    quota_.Pin(tensor.client, tensor.home.pool, tensor.size);
  } else {
    quota_.Unpin(tensor.client, tensor.home.pool, tensor.size);
  }
}

bool PlannerBooks::Evictable(const TensorRow& tensor) const {
  return tensor.state() == TensorState::kResident && !tensor.in_use && tensor.stream_complete &&
         !tensor.freed && !tensor.waiting;
}

void PlannerBooks::Reindex(TensorRow& tensor) {
  ClientArena* arena = ArenaOf(tensor);
  if (arena == nullptr) return;
  arena->index->Erase(tensor);
  if (Evictable(tensor)) arena->index->Insert(tensor);
}

DueTensors::List& PlannerBooks::DueListOf(const TensorRow& tensor) {
  return ArenaOf(tensor)->due[ToInt(tensor.away.pool)].Of(tensor.use_kind);
}

void PlannerBooks::List(TensorRow& tensor) {
  if (tensor.listed || tensor.waiting || tensor.never || tensor.dies) return;
  if (tensor.use_kind == UseKind::kUnknown || tensor.state() != TensorState::kAway) return;
  RAVEN_CHECK(tensor.away.is_placed());
  DueListOf(tensor).emplace(tensor.use_key, tensor.id);
  tensor.listed = true;
}

void PlannerBooks::Unlist(TensorRow& tensor) {
  if (!tensor.listed) return;
  DueListOf(tensor).erase({tensor.use_key, tensor.id});
  tensor.listed = false;
}

void PlannerBooks::FreeDevice(TensorRow& tensor) {
  if (!tensor.home.is_placed()) return;
  EndPrefetch(tensor, false);
  ClientArena* arena = ArenaOf(tensor);
  arena->space.Free(tensor.home.block);
  tensor.home.block = ExtentMap::kNone;
  Repin(tensor);
  Touch(arena);
}

void PlannerBooks::FreeAway(TensorRow& tensor) {
  tensor.away.state = Replica::State::kEmpty;
  if (!tensor.away.is_placed()) return;
  AwayPools::Member& pool = away_[tensor.away.pool];
  pool.Free(tensor.away.block);
  tensor.away.block = ExtentMap::kNone;
  quota_.Refund(tensor.client, tensor.away.pool, tensor.size);
  if (pool.comes_and_goes()) FreeCover(tensor);
}

void PlannerBooks::FreeCover(const TensorRow& tensor) {
  const auto cover = covers_.find(Catalog::RowOf(tensor.id));
  if (cover == covers_.end()) return;
  host_.Free(cover->second);
  quota_.Refund(tensor.client, kHostPool, tensor.size);
  covers_.erase(cover);
}

void PlannerBooks::DiscardBytes(TensorRow& tensor) {
  SetInUse(tensor, false);
  Count(tensor.client, &PlannerStats::discarded, 1);
  FreeDevice(tensor);
  FreeAway(tensor);
  Catalog::Commit(tensor, TensorState::kDiscarded);
}

ExpectedUse PlannerBooks::ExpectedAfter(const PutSeen& event, TensorRow& tensor) {
  Predictor& predictor = FindClient(tensor.client)->predictor;
  if (options_.policy == Policy::kValue)
    return predictor.Put(tensor.id, &tensor.logical, event.next_use, now_);
  const Tick virtual_time = predictor.VirtualTime(now_);
  if (event.next_use.kind == NextUse::Kind::kNever)
    return {.key = -virtual_time.time_since_epoch().count(), .never = true};
  return {.key = ArenaOf(tensor)->index->KeyAtPut(tensor, virtual_time, LinksOf(tensor.device()))};
}

void PlannerBooks::WriteChanges() {
  for (const auto& [id, use] : changes_) {
    TensorRow& tensor = *catalog_.Find(id);
    EvictionIndex& index = *ArenaOf(tensor)->index;
    const bool was_in = EvictionIndex::Contains(tensor);
    index.Erase(tensor);
    Unlist(tensor);
    tensor.Expect(use);
    if (was_in) index.Insert(tensor);
    List(tensor);
  }
  changes_.clear();
}

void PlannerBooks::EndPrefetch(TensorRow& tensor, bool used) {
  if (!tensor.prefetched) return;
  tensor.prefetched = false;
  if (!used) Count(tensor.client, &PlannerStats::prefetches_unused, 1);
}

void PlannerBooks::CountGet(TensorRow& tensor) {
  Client& client = *FindClient(tensor.client);
  const auto came_true = client.predictor.Got(&tensor.logical, now_);
  tensor.correlated = false;
  client.predictor.FollowGet(tensor, client.slots, now_, &changes_);
  WriteChanges();
  if (!came_true) return;
  Count(tensor.client,
        *came_true ? &PlannerStats::predictions_right : &PlannerStats::predictions_wrong, 1);
}

Bytes PlannerBooks::RoomFor(const ClientArena& arena, Coming reclaiming) const {
  const uint64_t request =
      requests_.Waiting(arena) == 0 ? QuotaTree::kLastRequest : requests_.First(arena).id;
  return quota_.Room(arena.client, arena.pool(), request, reclaiming);
}

Bytes PlannerBooks::LargestSlab(const ClientArena& arena) const {
  const Bytes budget = BudgetOf(arena);
  const Bytes part(budget.count() / kLeastSlabs);
  // What is beyond a tenant's share goes to others slab by slab, and less than one stays with it.
  const Bytes shared = std::max(options_.slab, Bytes(part.count() / kSlabsOfPart));
  const Bytes most =
      (quota_.HasRanks() ? std::min(part, shared) : part).RoundUp(options_.granularity);
  return std::max(options_.granularity, std::min(most, arena.space.most()));
}

// Idle memory may be lent beyond a share because it can be taken back, and for that it needs room
// on the host. What only fills a hole lends nothing more.
bool PlannerBooks::LacksCover(const ClientArena& arena, Bytes more) const {
  if (!quota_.HasGuarantees(arena.pool()) || arena.space.LargestHole() >= more) return false;
  if (quota_.IsWithinGuarantee(arena.client, arena.pool(), more)) return false;
  if (quota_.IsKeptTaken()) return true;
  const Bytes lent = quota_.Lent(arena.client, arena.pool(), more);
  if (lent == Bytes{0}) return false;
  Bytes away = quota_.Of(kHostPool).pinned;
  for (const auto& [id, client] : clients_) {
    for (const auto& other : client->arenas) {
      if (other != nullptr) away += Minus(other->live, other->space.used());
    }
  }
  // It comes back in whole slabs.
  return away + lent + LargestSlab(arena) > quota_.Lendable();
}

void PlannerBooks::SetAllocationPhase(ClientArena& arena, bool allocation_phase) {
  if (arena.allocation_phase == allocation_phase) return;
  arena.allocation_phase = allocation_phase;
  uint32_t& all = devices_[ToInt(arena.device)].allocating;
  all = allocation_phase ? all + 1 : all - 1;
}

void PlannerBooks::TakeBack(ClientArena& arena) {
  arena.fetch_phase = true;
  SetAllocationPhase(arena, false);
  arena.next_place.reset();
}

CopyLedger::Lane PlannerBooks::NextLane(const ClientArena& arena, Bytes size) const {
  const AwayPools::Departure next = DepartureOf(arena, size, Leaving::kNow);
  return LaneOf(arena, away_.Next(next, quota_.HostForCopies()));
}

void PlannerBooks::NoteRedundantCopy(TensorRow& tensor) {
  if (tensor.redundant_copy) return;
  Client& client = *FindClient(tensor.client);
  std::deque<TensorId>& copies = client.redundant_copies[tensor.away.pool];
  // Stale ids must not pile up where room is never short: for each that comes two are looked at, of
  // which those that still hold go to the end.
  const size_t most = 2 * client.slots.tensors() + kCopiesPerDrop;
  for (int i = 0; i < 2 && copies.size() > most; ++i) {
    const TensorId oldest = copies.front();
    copies.pop_front();
    TensorRow* listed = catalog_.Find(oldest);
    if (listed == nullptr || listed->away.pool != tensor.away.pool) continue;
    listed->redundant_copy = listed->has_copy() && listed->residency() == Residency::kOnDevice;
    if (listed->redundant_copy) copies.push_back(oldest);
  }
  copies.push_back(tensor.id);
  tensor.redundant_copy = true;
  ++redundant_copies_noted_;
}

// Tensors on their device do not need the copy; they become dirty again.
void PlannerBooks::DropRedundantCopies(Client& client, PoolId pool, Bytes need) {
  away_[pool].short_until = now_ + kPoolShortFor;
  std::deque<TensorId>& copies = client.redundant_copies[pool];
  Bytes freed;
  for (int i = 0; i < kCopiesPerDrop && freed < need && !copies.empty(); ++i) {
    TensorRow* tensor = catalog_.Find(copies.front());
    copies.pop_front();
    if (tensor == nullptr || tensor->away.pool != pool) continue;
    tensor->redundant_copy = false;
    if (!tensor->has_copy() || tensor->state() != TensorState::kResident) continue;
    freed += tensor->size;
    FreeAway(*tensor);
    Reindex(*tensor);
  }
}

std::vector<PlannerBooks::Client*> PlannerBooks::ByRank(PoolId pool) const {
  std::vector<Client*> clients;
  for (const auto& [id, client] : clients_) clients.push_back(client.get());
  if (!quota_.HasRanks()) return clients;
  std::stable_sort(clients.begin(), clients.end(), [&](const Client* a, const Client* b) {
    return quota_.RankOf(a->tenant, pool) < quota_.RankOf(b->tenant, pool);
  });
  return clients;
}

bool PlannerBooks::MayDropCopiesOf(const Client& client, PoolId pool, const Client& asking) const {
  const auto copies = client.redundant_copies.find(pool);
  if (copies == client.redundant_copies.end() || copies->second.empty()) return false;
  return pool == kHostPool ? quota_.MayDropCopiesOf(client.id, asking.id)
                           : client.tenant == asking.tenant;
}

bool PlannerBooks::MakeAwayBudget(Client& client, PoolId pool, Bytes of_client, Bytes of_tenant,
                                  RedundantCopies redundant) {
  const auto exceeded = [&] { return quota_.Exceeded(client.id, pool, of_client, of_tenant); };
  if (!exceeded()) return true;
  if (redundant == RedundantCopies::kKeep) return false;
  DropRedundantCopies(client, pool, of_tenant);
  for (auto other = clients_.begin(); other != clients_.end() && exceeded(); ++other) {
    // Only copies of the same tenant make room within its budget.
    if (exceeded() == Limit::kClient) return false;
    if (other->second->tenant == client.tenant)
      DropRedundantCopies(*other->second, pool, of_tenant);
  }
  return !exceeded();
}

void PlannerBooks::EndWait(ClientId id) {
  if (Client* client = FindClient(id)) client->predictor.EndWait(now_);
}

void PlannerBooks::Enqueue(Request request) {
  request.since = now_;
  Count(request.client, &PlannerStats::waiting, 1);
  BeginWait(request.client);
  requests_.Push(request);
  Touch(ArenaOf(request));
}

// What was under way for the request that waited longest.
void PlannerBooks::EndFirst(ClientArena& arena) {
  quota_.EndReservation(arena.client, arena.pool());
  arena.taking = false;
  arena.asked_more = 0;
  arena.waits_for_peak = false;
  arena.peak_until = {};
  arena.reclaim_wait = {};
  arena.reclaim_after = {};
}

Request PlannerBooks::Dequeue(const Request& given) {
  ClientArena* arena = ArenaOf(given);
  const bool first = requests_.First(given).id == given.id;
  const Request request = requests_.Pop(given.id);
  if (first) EndFirst(*arena);
  Forget(request);
  ++answered_;
  Touch(arena);
  return request;
}

void PlannerBooks::Forget(const Request& request) {
  Count(request.client, &PlannerStats::waiting, -1);
  EndWait(request.client);
  Count(request.client, &PlannerStats::waited, now_ - request.since);
}

void PlannerBooks::Touch(ClientArena* arena) {
  if (std::exchange(arena->touched, true)) return;
  touched_.push_back(arena);
}

void PlannerBooks::TouchWaiting() {
  for (const auto& [id, line] : requests_.lines()) Touch(ArenaOf(id));
}

void PlannerBooks::TouchFetch(const TensorRow& tensor) {
  if (!tensor.waiting || FindClient(tensor.client) == nullptr) return;
  Touch(ArenaOf(requests_.FetchOf(tensor.id)));
}

void PlannerBooks::AwayRoomCame() {
  if (std::exchange(away_wanted_, false)) TouchWaiting();
}

}  // namespace ravenstore::core
