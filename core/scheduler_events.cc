// What each event does.
#include <algorithm>
#include <bit>
#include <utility>

#include "core/check.h"
#include "core/scheduler.h"
#include "core/size_text.h"

namespace ravenstore::core {

namespace {
// After a slab or a copy failed, the same is not tried again before this long.
constexpr Duration kBackoff = std::chrono::milliseconds(100);
constexpr int kFailuresPerPass = 256;
}  // namespace

void Scheduler::Finish(TensorRow& tensor) {
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

bool Scheduler::FinishIfGone(TensorRow& tensor) {
  if (!tensor.freed && FindClient(tensor.client) != nullptr) return false;
  Finish(tensor);
  return true;
}

void Scheduler::ForgetTensors() {
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

void Scheduler::ForgetSome() {
  for (const Request& request : requests_.PopAbandoned(options_.forgotten_per_pass))
    Forget(request);
  ForgetTensors();
  if (requests_.HasAbandoned() || !gone_.empty()) WakeAt(now_);
}

void Scheduler::Apply(const Event& event, Tick now, Plan* plan) {
  now_ = std::max(now_, now);
  plan_ = plan;
  answered_ = 0;
  std::visit([this](const auto& one) { On(one); }, event);
  ServeTouched();
  ServeChunks();
  plan_ = nullptr;
}

void Scheduler::LimitsChanged(ClientArena& arena) {
  // What was looked for in vain may be there now.
  arena.no_run = {};
  arena.reclaim_after = {};
  arena.shrink_after = {};
  Touch(&arena);
}

void Scheduler::On(const TenantLimits& event) {
  quota_.SetBudgets(event.tenant, event.budgets);
  for (const auto& [id, client] : clients_) {
    if (client->tenant != event.tenant) continue;
    for (const auto& arena : client->arenas) {
      if (arena != nullptr) LimitsChanged(*arena);
    }
  }
}

void Scheduler::On(const DeviceLimit& event) {
  const size_t device = ToInt(event.device);
  if (device >= devices_.size()) return;
  quota_.SetLimit(PoolOf(event.device), event.capacity);
  if (const auto harvest = away_.HarvestOf(event.device)) {
    TakeAhead(*harvest);
    BalanceChunks(*harvest);
  }
  for (const auto& [id, client] : clients_) {
    if (client->arenas[device] != nullptr) LimitsChanged(*client->arenas[device]);
  }
}

void Scheduler::On(const ClientAttached& event) {
  quota_.Attach(event.client, event.tenant, event.budgets);
  copies_.Attach(event.client, event.tenant);
  Tenant& tenant = tenants_[event.tenant];
  tenant.device_full_until.resize(devices_.size());
  auto client = std::make_shared<Client>(event, &catalog_,
                                         Predictor::Options{options_.learn, options_.heuristics});
  client->arenas.resize(devices_.size());
  clients_.emplace(event.client, std::move(client));
  EnsureHostAhead(Bytes{0});
}

void Scheduler::On(const ClientLimits& event) {
  Client* client = FindClient(event.client);
  if (client == nullptr) return;
  quota_.SetBudgets(event.client, event.budgets);
  for (const auto& arena : client->arenas) {
    if (arena != nullptr) LimitsChanged(*arena);
  }
}

void Scheduler::On(const Trimmed& event) {
  Client* client = FindClient(event.client);
  if (client == nullptr) return;
  for (const auto& arena : client->arenas) {
    if (arena == nullptr) continue;
    arena->trimming = true;
    Touch(arena.get());
  }
}

void Scheduler::On(const ClientGone& event) {
  Client* client = FindClient(event.client);
  if (client == nullptr) return;
  for (const auto& arena : client->arenas) {
    if (arena == nullptr) continue;
    EndFirst(*arena);
    requests_.Abandon(*arena);
    active_arenas_.erase(arena.get());
    SetAllocationPhase(*arena, false);
  }
  quota_.Detach(event.client);
  copies_.Detach(event.client);
  gone_.push_back(std::move(clients_.at(event.client)));
  clients_.erase(event.client);
  last_found_ = nullptr;
  std::erase_if(touched_, [&](ClientArena* arena) { return arena->client == event.client; });
  ForgetSome();
  TouchWaiting();
}

void Scheduler::On(const SlabAdded& event) {
  ClientArena* arena = ArenaOf(event.client, event.device);
  if (arena == nullptr) return;
  arena->limit.clear();
  arena->space.Came({event.offset, event.size});
  Touch(arena);
}

void Scheduler::On(const SlabFailed& event) {
  ClientArena* arena = ArenaOf(event.client, event.device);
  if (arena == nullptr) return;
  const Bytes failed = arena->space.Failed(options_.slab, options_.granularity);
  arena->limit = event.limit;
  quota_.Refund(event.client, arena->pool(), failed);
  if (failed <= options_.slab) BackOff(*arena);
  Touch(arena);
}

void Scheduler::BackOff(ClientArena& arena) {
  arena.backoff_until = now_ + kBackoff;
  WakeAt(arena.backoff_until);
  active_arenas_.insert(&arena);
}

void Scheduler::On(const SlabRemoved& event) {
  ClientArena* arena = ArenaOf(event.client, event.device);
  if (arena == nullptr) return;
  const auto removed = arena->space.Gone(event.offset);
  if (!removed) return;
  if (removed->overdue) {
    quota_.EndOverdue(event.client, arena->pool(), removed->size);
  } else {
    quota_.EndReclaiming(event.client, arena->pool(), removed->size);
  }
  quota_.Refund(event.client, arena->pool(), removed->size);
  // The request that waits longest comes first: else the client that had to give the memory back
  // may take it again.
  std::map<uint64_t, ArenaId> waiting;
  for (const auto& [id, line] : requests_.lines()) waiting.emplace(*line.ids.begin(), id);
  for (const auto& [first, id] : waiting) Touch(ArenaOf(id));
  Touch(arena);
}

void Scheduler::On(const PoolGrown& event) {
  away_[event.pool].Grown({event.offset, event.size});
  if (event.pool == kHostPool) {
    EnsureHostAhead(Bytes{0});
  } else {
    BalanceChunks(event.pool);  // it may hold less meanwhile
  }
  TouchWaiting();
}

void Scheduler::On(const PoolGrowFailed& event) {
  if (event.pool != kHostPool) {
    AwayPools::Member& pool = away_[event.pool];
    pool.taken.erase(pool.coming().first);
    pool.GrowFailed();
    pool.grows_after = now_ + kBackoff;
    return CountHarvest(event.pool);
  }
  // The pool stays as it is for a while; requests that wait for it are served as far as it goes.
  host_.GrowFailed();
  host_backoff_until_ = now_ + kBackoff;
  WakeAt(host_backoff_until_);
  TouchWaiting();
}

void Scheduler::On(const CreateRequested& event) {
  Client* client = FindClient(event.client);
  if (client == nullptr) return;
  const size_t device = ToInt(event.device);
  RAVEN_CHECK(device < devices_.size());
  auto refuse = [&](ErrorCode code, std::string message) {
    plan_->push_back(AllocError{event.client, event.slot, {code, std::move(message)}});
  };
  if (event.size == Bytes{0})
    return refuse(ErrorCode::kInvalidArgument, "a tensor has at least 1 byte");
  // In whole granules, as slabs are.
  const PoolId pool = PoolOf(event.device);
  const Bytes most = std::min({quota_.LimitOf(event.client, pool, Limit::kClient),
                               quota_.LimitOf(event.client, pool, Limit::kTenant),
                               options_.arena[device], options_.device_capacity[device]})
                         .RoundDown(options_.granularity);
  if (event.size > most) {
    return refuse(ErrorCode::kOutOfMemory, "a tensor of " + SizeText(event.size) +
                                               " is larger than the " + SizeText(most) +
                                               " that this client may hold on device " +
                                               std::to_string(device) + ": raise device_budget");
  }
  Request request;
  request.client = event.client;
  request.device = event.device;
  request.size = event.size;
  request.deadline = event.deadline;
  request.slot = event.slot;
  request.name = event.name;
  request.fail_fast = event.fail_fast;
  request.fail_stuck = event.fail_stuck;
  request.long_lived = event.long_lived;
  // The common case: no request waits before it and there is a hole.
  ClientArena* arena = ArenaOf(request);
  if (requests_.Waiting(*arena) == 0 && !ExceedsShare(*arena, request.size) &&
      !LacksCover(*arena, request.size) && !WaitsForPeak(*arena, request) &&
      Grants(*arena, request))
    return GrowAhead(*arena);
  Enqueue(request);
}

void Scheduler::On(const FetchRequested& event) {
  TensorRow* tensor = FindTensor(event.tensor);
  if (tensor == nullptr || tensor->freed || tensor->waiting) return;
  ClientArena* arena = ArenaOf(tensor->client, event.device);
  RAVEN_CHECK(arena != nullptr);
  TakeBack(*arena);
  if (IsOrdered(*tensor)) arena->index->SetOrderCursor(tensor->use_key);
  CountGet(*tensor);
  const bool here = tensor->device() == event.device;
  const Residency residency = tensor->residency();
  if (residency == Residency::kLost) {
    plan_->push_back(FetchError{NameOf(*tensor), {ErrorCode::kLost, WhyLost(*tensor)}});
    return;
  }
  if (here && (residency == Residency::kArriving || residency == Residency::kOnDevice)) {
    const bool arriving = residency == Residency::kArriving;
    Count(tensor->client, arriving ? &PlannerStats::late_hits : &PlannerStats::hits, 1);
    if (arriving && tensor->prefetched) BeginWait(tensor->client);
    return ReplyInPlace(*tensor, arriving);
  }
  Count(tensor->client, &PlannerStats::misses, 1);
  Unlist(*tensor);
  tensor->waiting = true;
  ArenaOf(*tensor)->index->Erase(*tensor);
  Request request;
  request.client = tensor->client;
  request.device = event.device;
  request.size = tensor->size;
  request.deadline = event.deadline;
  request.fail_stuck = event.fail_stuck;
  request.tensor = tensor->id;
  Enqueue(request);
}

void Scheduler::On(const Freed& event) {
  TensorRow* tensor = FindTensor(event.tensor);
  if (tensor == nullptr || tensor->freed) return;
  Count(tensor->client, &PlannerStats::frees, 1);
  FindClient(tensor->client)->predictor.Freed(tensor->name, tensor->size, &tensor->logical);
  if (tensor->waiting) {
    // Only a client that breaks the protocol frees what it is fetching; its fetch gets no answer.
    Dequeue(requests_.FetchOf(tensor->id));
    tensor->waiting = false;
  }
  if (!tensor->is_under_way()) return Finish(*tensor);
  tensor->freed = true;
  SetInUse(*tensor, false);
  Reindex(*tensor);
}

void Scheduler::On(const PutSeen& event) {
  TensorRow* tensor = FindTensor(event.tensor);
  if (tensor == nullptr || tensor->freed || tensor->residency() == Residency::kAway) return;
  // What is prefetched and has not arrived cannot be put: the client made that up.
  if (tensor->state() == TensorState::kArriving && tensor->prefetched) return;
  ClientArena* arena = ArenaOf(*tensor);
  arena->index->Erase(*tensor);
  // A put while it was leaving: a get has rescued it, and the copy's answer will say so.
  if (tensor->residency() == Residency::kLeaving) Catalog::Commit(*tensor, TensorState::kRescued);
  SetInUse(*tensor, false);
  EndPrefetch(*tensor, true);  // before it is hinted otherwise
  SetStreamComplete(*tensor, false);
  tensor->put_seen = true;
  if (tensor->version != event.writes && !tensor->dirty())
    tensor->away.state = Replica::State::kStale;
  tensor->version = event.writes;
  tensor->priority = event.priority;
  const bool recompute_wins =
      event.recompute > Duration{0} &&
      event.recompute < BothCopies(LinksOf(tensor->device()).Of(*tensor), tensor->size);
  tensor->recompute =
      recompute_wins
          ? static_cast<uint8_t>(std::bit_width(static_cast<uint64_t>(event.recompute.count())))
          : uint8_t{0};
  if (tensor->has_copy() && tensor->dirty() && !tensor->is_under_way()) {
    FreeAway(*tensor);
    AwayRoomCame();
  }
  tensor->Expect(ExpectedAfter(event, *tensor));
  if (IsOrdered(*tensor)) arena->index->LowerOrderCursor(tensor->use_key);
}

void Scheduler::On(const StreamComplete& event) {
  TensorRow* tensor = FindTensor(event.tensor);
  if (tensor == nullptr || tensor->freed || tensor->in_use) return;
  SetStreamComplete(*tensor, true);
  Reindex(*tensor);
  if (tensor->never && EvictionIndex::Contains(*tensor))
    EvictAll(*ArenaOf(*tensor), {Catalog::RowOf(tensor->id)}, RedundantCopies::kKeep);
  Touch(ArenaOf(*tensor));
  TouchFetch(*tensor);
}

void Scheduler::On(const GetSeen& event) {
  TensorRow* tensor = FindTensor(event.tensor);
  if (tensor == nullptr || tensor->freed || tensor->residency() == Residency::kAway) return;
  // An old entry that comes late: what is prefetched cannot be had before it has arrived.
  if (tensor->state() == TensorState::kArriving && tensor->prefetched) return;
  Count(tensor->client, &PlannerStats::hits, 1);
  CountGet(*tensor);
  if (tensor->residency() == Residency::kLeaving) Catalog::Commit(*tensor, TensorState::kRescued);
  ClientArena* arena = ArenaOf(*tensor);
  TakeBack(*arena);
  if (IsOrdered(*tensor)) arena->index->SetOrderCursor(tensor->use_key);
  SetInUse(*tensor, true);
  SetStreamComplete(*tensor, false);
  EndPrefetch(*tensor, true);
  Reindex(*tensor);
  Touch(arena);
}

void Scheduler::On(const StepMarked& event) {
  Client* client = FindClient(event.client);
  if (client != nullptr) client->predictor.Step();
}

void Scheduler::On(const TimePassed&) {
  // The others, if there are more, in the next pass, so that no other client waits for them all.
  for (int i = 0; i < kFailuresPerPass; ++i) {
    const Request* request = requests_.Overdue(now_);
    if (request == nullptr) break;
    if (FindClient(request->client) == nullptr) {
      Forget(requests_.Pop(request->id));
    } else {
      FailForRoom(*request);
    }
  }
  while (const auto id = wakes_.Due(now_)) {
    wakes_.Disarm(*id);
    if (ClientArena* arena = ArenaOf(*id)) Touch(arena);
  }
  while (const auto slab = late_.Due(now_)) {
    late_.Disarm(*slab);
    const ClientArena* arena = ArenaOf(slab->first);
    if (arena != nullptr && IsLate(*arena)) TouchWaiting();
  }
  while (const auto slab = overdue_.Due(now_)) {
    overdue_.Disarm(*slab);
    if (ClientArena* arena = ArenaOf(slab->first)) NoteOverdue(*arena);
  }
  // What wakes one arena alone is no reason to look at them all.
  if (now_ < next_poll_) return;
  next_poll_ = kNever;
  const auto active = std::exchange(active_arenas_, {});
  for (ClientArena* arena : active) Touch(arena);
  TouchWaiting();
  ForgetSome();
  EnsureHostAhead(Bytes{0});
}

}  // namespace ravenstore::core
