// The planner's ledgers and indexes: what each client holds, and what may move.
#include <algorithm>

#include "core/check.h"
#include "core/planner_state.h"
#include "core/size_text.h"

namespace ravenstore::core {

namespace {
Topology TopologyOf(const PlannerOptions& options) {
  if (!options.topology.pools().empty()) return options.topology;
  const std::vector<LinkModel> links(options.device_capacity.size());
  return DevicesAroundHost(options.device_capacity, options.host_capacity, options.granularity,
                           links)
      .value();
}
}  // namespace

Planner::State::State(PlannerOptions options)
    : options_(std::move(options)),
      topology_(TopologyOf(options_)),
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

Planner::State::Client* Planner::State::FindClient(ClientId client) {
  // One event asks for the same client several times, and several events come from each in turn.
  if (last_found_ != nullptr && last_found_->id == client) return last_found_;
  const auto found = clients_.find(client);
  if (found == clients_.end()) return nullptr;
  last_found_ = found->second.get();
  return last_found_;
}

TensorRow* Planner::State::FindTensor(TensorId id) {
  TensorRow* tensor = catalog_.Find(id);
  return tensor == nullptr || FindClient(tensor->client) == nullptr ? nullptr : tensor;
}

ClientArena* Planner::State::ArenaOf(const ArenaId& id) {
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
void Planner::State::Count(ClientId id, Counter counter, Amount amount) {
  stats_.*counter += amount;
  if (Client* client = FindClient(id)) client->stats.*counter += amount;
}
template void Planner::State::Count(ClientId, uint64_t PlannerStats::*, int);
template void Planner::State::Count(ClientId, Bytes PlannerStats::*, Bytes);
template void Planner::State::Count(ClientId, Duration PlannerStats::*, Duration);

void Planner::State::SetInUse(TensorRow& tensor, bool in_use) {
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

void Planner::State::SetStreamComplete(TensorRow& tensor, bool stream_complete) {
  tensor.stream_complete = stream_complete;
  Repin(tensor);
}

void Planner::State::Repin(TensorRow& tensor) {
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

void Planner::State::EndWait(ClientId id) {
  if (Client* client = FindClient(id)) client->predictor.EndWait(now_);
}

bool Planner::State::Evictable(const TensorRow& tensor) const {
  return tensor.state() == TensorState::kResident && !tensor.in_use && tensor.stream_complete &&
         !tensor.freed && !tensor.waiting;
}

void Planner::State::Reindex(TensorRow& tensor) {
  ClientArena* arena = ArenaOf(tensor);
  if (arena == nullptr) return;
  arena->index->Erase(tensor);
  if (Evictable(tensor)) arena->index->Insert(tensor);
}

DueTensors::List& Planner::State::DueListOf(const TensorRow& tensor) {
  return ArenaOf(tensor)->due[ToInt(tensor.away.pool)].Of(tensor.use_kind);
}

void Planner::State::List(TensorRow& tensor) {
  if (tensor.listed || tensor.waiting || tensor.never || tensor.dies) return;
  if (tensor.use_kind == UseKind::kUnknown || tensor.state() != TensorState::kAway) return;
  RAVEN_CHECK(tensor.away.is_placed());
  DueListOf(tensor).emplace(tensor.use_key, tensor.id);
  tensor.listed = true;
}

void Planner::State::Unlist(TensorRow& tensor) {
  if (!tensor.listed) return;
  DueListOf(tensor).erase({tensor.use_key, tensor.id});
  tensor.listed = false;
}

void Planner::State::FreeDevice(TensorRow& tensor) {
  if (!tensor.home.is_placed()) return;
  EndPrefetch(tensor, false);
  ClientArena* arena = ArenaOf(tensor);
  arena->space.Free(tensor.home.block);
  tensor.home.block = ExtentMap::kNone;
  Repin(tensor);
  Touch(arena);
}

void Planner::State::Finish(TensorRow& tensor) {
  Client* client = FindClient(tensor.client);
  if (tensor.away.is_placed()) AwayRoomCame();
  FreeAway(tensor);
  if (client != nullptr) {
    ClientArena* arena = ArenaOf(tensor);
    arena->index->Erase(tensor);
    Unlist(tensor);
    if (tensor.home.is_placed()) arena->freed.Add(tensor.size, now_);
    EndPrefetch(tensor, false);
    FreeDevice(tensor);
    SetInUse(tensor, false);
    arena->live -= tensor.size;
    client->slots.Clear(tensor.slot);
    plan_->push_back(Release{tensor.client, tensor.slot, tensor.id});
    Touch(arena);
  }
  catalog_.Remove(tensor.id);
}

bool Planner::State::FinishIfGone(TensorRow& tensor) {
  if (!tensor.freed && FindClient(tensor.client) != nullptr) return false;
  Finish(tensor);
  return true;
}

void Planner::State::Enqueue(Request request) {
  request.since = now_;
  Count(request.client, &PlannerStats::waiting, 1);
  BeginWait(request.client);
  requests_.Push(request);
  Touch(ArenaOf(request));
}

// What was under way for the request that waited longest.
void Planner::State::EndFirst(ClientArena& arena) {
  quota_.EndReservation(arena.client, arena.pool());
  arena.taking = false;
  arena.asked_more = 0;
  arena.waits_for_peak = false;
  arena.peak_until = {};
  arena.reclaim_wait = {};
  arena.reclaim_after = {};
}

Request Planner::State::Dequeue(const Request& given) {
  ClientArena* arena = ArenaOf(given);
  const bool first = requests_.First(given).id == given.id;
  const Request request = requests_.Pop(given.id);
  if (first) EndFirst(*arena);
  Forget(request);
  ++answered_;
  Touch(arena);
  return request;
}

void Planner::State::Forget(const Request& request) {
  Count(request.client, &PlannerStats::waiting, -1);
  EndWait(request.client);
  Count(request.client, &PlannerStats::waited, now_ - request.since);
}

void Planner::State::ForgetTensors() {
  for (uint32_t i = 0; i < options_.forgotten_per_pass && !gone_.empty(); ++i) {
    Client& client = *gone_.front();
    if (client.slots.size() == 0) {
      const TenantId tenant = client.tenant;
      plan_->push_back(DeferDestroy{tenant, std::move(gone_.front())});
      gone_.pop_front();
      continue;
    }
    const uint32_t row = client.slots.Pop();
    if (row == TensorSlots::kNoRow) continue;
    // Its copy may have ended meanwhile, and another stand in the row.
    TensorRow& tensor = catalog_[row];
    if (tensor.id == kNoTensor || tensor.client != client.id) continue;
    // While it is copied its place in the host pool may be written.
    if (!tensor.is_under_way()) Finish(tensor);
  }
}

void Planner::State::ForgetSome() {
  for (const Request& request : requests_.PopAbandoned(options_.forgotten_per_pass))
    Forget(request);
  ForgetTensors();
  if (requests_.HasAbandoned() || !gone_.empty()) WakeAt(now_);
}

void Planner::State::Fail(const Request& given, ErrorCode code, const std::string& message) {
  const Request request = Dequeue(given);
  if (!request.is_fetch()) {
    plan_->push_back(AllocError{request.client, request.slot, {code, message}});
    return;
  }
  TensorRow* tensor = catalog_.Find(request.tensor);
  tensor->waiting = false;
  List(*tensor);
  Reindex(*tensor);  // it may still be on the device that it was to leave
  plan_->push_back(FetchError{request.tensor, {code, message}});
}

void Planner::State::FailForRoom(const Request& request) {
  const ClientArena* arena = ArenaOf(request);
  if (arena != nullptr && !arena->limit.empty())
    return Fail(request, ErrorCode::kLimit, arena->limit);
  Fail(request, ErrorCode::kOutOfMemory, DescribeHolders(request));
}

// The asker's own tenant is told which of its clients hold what, and of other tenants which.
std::string Planner::State::Holders(ClientId asker, PoolId pool) const {
  using Usage = QuotaTree::Usage;
  const bool pinned = pool == kHostPool;
  auto [own, others] = quota_.HoldersOf(asker, pool, pinned ? &Usage::pinned : &Usage::held);
  const std::string end = pinned ? " pinned;" : ";";
  std::string text;
  const size_t own_more = KeepLargest(&own);
  for (const auto& [id, has] : own) {
    text += " client " + std::to_string(ToInt(id)) + " holds " + SizeText(has);
    if (!pinned) text += " (" + SizeText(clients_.at(id)->in_use) + " in use)";
    text += end;
  }
  if (own_more > 0) text += " " + std::to_string(own_more) + " more of this user;";
  const size_t others_more = KeepLargest(&others);
  for (const auto& [id, has] : others)
    text += " user " + std::to_string(ToInt(id)) + " holds " + SizeText(has) + end;
  if (others_more > 0) text += " " + std::to_string(others_more) + " more users;";
  return text;
}

std::string Planner::State::DescribeHolders(const Request& request) const {
  const ClientArena& arena = *clients_.at(request.client)->arenas[ToInt(request.device)];
  const TenantId tenant = clients_.at(request.client)->tenant;
  std::string text = "device " + std::to_string(ToInt(arena.device)) + ": no room for " +
                     SizeText(request.size) + " within client " +
                     std::to_string(ToInt(arena.client)) + "'s budget of " +
                     SizeText(quota_.BudgetsOf(arena.client).device) + " and its tenant's of " +
                     SizeText(quota_.BudgetsOf(tenant).device) + "; holders:";
  text += Holders(arena.client, arena.pool());
  const Bytes share = quota_.Share(tenant, arena.pool());
  if (const Bytes kept = Minus(quota_.LimitOf(arena.pool()), share); kept > Bytes{0})
    text += " other tenants are guaranteed " + SizeText(kept) + ";";
  if (ExceedsShare(arena, request.size)) {
    text += " this user has " + SizeText(quota_.Of(tenant, arena.pool()).pinned) +
            " in use, of the " + SizeText(share) + " that it may while others are attached;";
  }
  if (!request.is_fetch() && LacksCover(arena, request.size))
    text += " the host has no room for what it would lend this user of what others are guaranteed;";
  text += DescribePieces(arena, request);
  if (host_.held() >= quota_.HostForCopies() && host_.LargestHole() < request.size)
    text += " the host pool of " + SizeText(options_.host_capacity) + " is full;";
  if (!quota_.IsWithinHostShare(arena.client, request.size)) text += HostHolder();
  return text + " put or free tensors, raise the budgets, or wait longer";
}

std::string Planner::State::DescribePieces(const ClientArena& arena, const Request& request) const {
  const auto& [searched_for, since, kept, hope] = arena.last_resort;
  const Bytes need = request.size.RoundUp(options_.granularity);
  const Bytes budget = BudgetOf(arena);
  const Bytes pinned = UsageOf(arena).pinned;
  if (searched_for != request.id || kept + need <= budget || pinned + need > budget) return "";
  return " its " + SizeText(pinned) + " in use lie in slabs of " + SizeText(kept) +
         ", and what is left between them is in pieces (fragmentation): a device budget of " +
         SizeText(kept + need) + " would do;";
}

std::string Planner::State::HostHolder() const {
  return " the rest of the host pool of " + SizeText(options_.host_capacity) +
         " is kept for users who hold little of it, and user " +
         std::to_string(ToInt(quota_.LargestHolder(kHostPool))) + " holds the most;";
}

}  // namespace ravenstore::core
