// The planner's ledgers and indexes: who holds what, and what may move.
#include <algorithm>

#include "core/check.h"
#include "core/planner_state.h"
#include "core/size_text.h"

namespace ravenstore::core {

namespace {
// Host copies given up in one go when the pool is full.
constexpr int kHostCopiesPerDrop = 256;
// Requests of clients that are gone.
constexpr int kForgottenPerPass = 1024;
constexpr Duration kHostShortFor = std::chrono::milliseconds(100);
}  // namespace

Planner::State::State(PlannerOptions options)
    : options_(std::move(options)),
      host_(options_.host_capacity),
      devices_(options_.device_capacity.size()) {
  RAVEN_CHECK(options_.arena.size() == options_.device_capacity.size());
  for (size_t i = 0; i < devices_.size(); ++i) devices_[i].limit = options_.device_capacity[i];
}

Planner::State::Client* Planner::State::FindClient(ClientId client) {
  // One event asks for the same client several times, and several events come from each in turn.
  if (last_found_ != nullptr && last_found_->id == client) return last_found_;
  const auto found = clients_.find(client);
  if (found == clients_.end()) return nullptr;
  last_found_ = found->second.get();
  return last_found_;
}

Arena* Planner::State::ArenaOf(ClientId id, DeviceId device) {
  Client* client = FindClient(id);
  if (client == nullptr || ToInt(device) >= devices_.size()) return nullptr;
  auto& arena = client->arenas[ToInt(device)];
  if (arena == nullptr) {
    arena = std::make_unique<Arena>(id, device, options_.arena[ToInt(device)], &catalog_,
                                    &client->forecast, options_.policy);
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

void Planner::State::SetInUse(Tensor& tensor, bool in_use) {
  if (tensor.in_use == in_use) return;
  tensor.in_use = in_use;
  Client* client = FindClient(tensor.client);
  if (client == nullptr) return;
  if (in_use) {
    client->in_use += tensor.size;
  } else {
    client->in_use -= tensor.size;
  }
}

Tick Planner::State::OwnTime(const Client& client) const {
  return (client.waits > 0 ? client.waiting_since : now_) - client.stood;
}

void Planner::State::BeginWait(ClientId id) {
  Client& client = *FindClient(id);
  if (client.waits++ == 0) client.waiting_since = now_;
}

void Planner::State::EndWait(ClientId id) {
  Client* client = FindClient(id);
  if (client == nullptr) return;
  RAVEN_CHECK(client->waits > 0);
  if (--client->waits == 0) client->stood += now_ - client->waiting_since;
}

void Planner::State::SetNextUse(Tensor& tensor, const NextUse& next_use) {
  tensor.never = next_use.kind == NextUse::Kind::kNever;
  tensor.dies = false;
  tensor.predicted = false;
  tensor.correlated = false;
  const Tick own_time = OwnTime(*FindClient(tensor.client));
  if (options_.policy != Policy::kValue && !tensor.never) {
    tensor.use_kind = UseKind::kUnknown;
    tensor.use_key = options_.policy == Policy::kGdsf
                         ? ArenaOf(tensor)->index.FrequencyKey(tensor, options_.link)
                         : -own_time.time_since_epoch().count();
    return;
  }
  switch (next_use.kind) {
    case NextUse::Kind::kAt:
      tensor.use_kind = UseKind::kAt;
      tensor.use_key = (next_use.at - (now_ - own_time)).time_since_epoch().count();
      return;
    case NextUse::Kind::kOrder:
      tensor.use_kind = UseKind::kOrder;
      tensor.use_key = next_use.order;
      return;
    case NextUse::Kind::kUnknown:
    case NextUse::Kind::kNever:
      tensor.use_kind = UseKind::kUnknown;
      tensor.use_key = -own_time.time_since_epoch().count();
      return;
  }
}

std::set<std::pair<int64_t, TensorId>>& Planner::State::DueList(Arena& arena, UseKind kind) {
  if (kind == UseKind::kAt) return arena.due_at;
  return kind == UseKind::kOrder ? arena.due_order : arena.due_learned;
}

bool Planner::State::Evictable(const Tensor& tensor) const {
  return tensor.residency == Residency::kOnDevice && !tensor.in_use && tensor.quiet &&
         !tensor.copying && !tensor.freed && !tensor.orphan && !tensor.waiting;
}

void Planner::State::Reindex(Tensor& tensor) {
  Arena* arena = ArenaOf(tensor);
  if (arena == nullptr) return;
  arena->index.Erase(tensor);
  if (Evictable(tensor)) arena->index.Insert(tensor);
}

void Planner::State::List(Tensor& tensor) {
  if (tensor.listed || tensor.waiting || tensor.never || tensor.dies || tensor.given_up) return;
  if (tensor.use_kind == UseKind::kUnknown) return;
  RAVEN_CHECK(tensor.host_block != ExtentMap::kNone);
  DueList(*ArenaOf(tensor), tensor.use_kind).emplace(tensor.use_key, tensor.id);
  tensor.listed = true;
}

void Planner::State::Unlist(Tensor& tensor) {
  if (!tensor.listed) return;
  DueList(*ArenaOf(tensor), tensor.use_kind).erase({tensor.use_key, tensor.id});
  tensor.listed = false;
}

bool Planner::State::AllocateHost(Tensor& tensor, SpareCopies spare) {
  if (tensor.host_block != ExtentMap::kNone) return true;
  if (TryAllocateHost(tensor, spare)) return true;
  host_wanted_ |= spare == SpareCopies::kMayDrop;
  return false;
}

bool Planner::State::TryAllocateHost(Tensor& tensor, SpareCopies spare) {
  Client& client = *FindClient(tensor.client);
  Tenant& tenant = tenants_.at(client.tenant);
  const auto fits = [&] {
    return client.host_used + tensor.size <= client.budgets.host &&
           tenant.host_used + tensor.size <= tenant.budgets.host;
  };
  if (!fits() && spare == SpareCopies::kKeep) return false;
  if (!fits()) DropSpareCopies(client, tensor.size);
  for (auto other = clients_.begin(); other != clients_.end() && !fits(); ++other) {
    // Only copies of the same tenant make room within its budget.
    if (client.host_used + tensor.size > client.budgets.host) return false;
    if (other->second->tenant == client.tenant) DropSpareCopies(*other->second, tensor.size);
  }
  if (!fits()) return false;
  const auto block = TakeHostRoom(client, tensor, spare);
  if (!block) return false;
  tensor.host_block = *block;
  client.host_used += tensor.size;
  tenant.host_used += tensor.size;
  EnsureHostAhead(Bytes{0});
  return true;
}

void Planner::State::FreeHost(Tensor& tensor) {
  tensor.on_host = false;
  if (tensor.host_block == ExtentMap::kNone) return;
  host_.Free(tensor.host_block);
  tensor.host_block = ExtentMap::kNone;
  Client* client = FindClient(tensor.client);
  if (client == nullptr) return;  // its use was refunded when it went
  client->host_used -= tensor.size;
  tenants_.at(client->tenant).host_used -= tensor.size;
}

std::optional<ExtentMap::Block> Planner::State::TakeHostRoom(Client& client, const Tensor& tensor,
                                                             SpareCopies spare) {
  const uint32_t row = Catalog::RowOf(tensor.id);
  auto block = host_.Allocate(tensor.size, row);
  if (block) return block;
  EnsureHostAhead(tensor.size);
  if (host_growing_) return std::nullopt;  // its answer brings us back
  if (spare == SpareCopies::kKeep) return std::nullopt;
  DropSpareCopies(client, tensor.size);
  block = host_.Allocate(tensor.size, row);
  for (auto other = clients_.begin(); other != clients_.end() && !block; ++other) {
    if (other->second->host_copies.empty()) continue;
    DropSpareCopies(*other->second, tensor.size);
    block = host_.Allocate(tensor.size, row);
  }
  return block;
}

void Planner::State::NoteSpareCopy(Tensor& tensor) {
  if (tensor.spare_copy) return;
  Client& client = *FindClient(tensor.client);
  // Stale ids must not pile up where host room is never short.
  if (client.host_copies.size() > 2 * client.tensors + kHostCopiesPerDrop) {
    std::erase_if(client.host_copies, [this](TensorId id) {
      Tensor* listed = catalog_.Find(id);
      if (listed == nullptr) return true;
      listed->spare_copy = listed->on_host && listed->residency == Residency::kOnDevice;
      return !listed->spare_copy;
    });
  }
  client.host_copies.push_back(tensor.id);
  tensor.spare_copy = true;
  ++spare_copies_noted_;
}

// Tensors on their device do not need the copy; they become dirty again.
void Planner::State::DropSpareCopies(Client& client, Bytes need) {
  host_short_until_ = now_ + kHostShortFor;
  Bytes freed;
  for (int i = 0; i < kHostCopiesPerDrop && freed < need && !client.host_copies.empty(); ++i) {
    const TensorId id = client.host_copies.front();
    client.host_copies.pop_front();
    Tensor* tensor = catalog_.Find(id);
    if (tensor == nullptr) continue;
    tensor->spare_copy = false;
    if (!tensor->on_host || tensor->copying || tensor->residency != Residency::kOnDevice) continue;
    freed += tensor->size;
    FreeHost(*tensor);
    Reindex(*tensor);
  }
}

void Planner::State::EnsureHostAhead(Bytes need) {
  if (host_growing_ || host_end_ >= options_.host_capacity) return;
  if (now_ < host_backoff_until_) return;
  // The driver does one thing at a time, and pinning 64 MiB takes as long as fifty slabs.
  if (need == Bytes{0} && now_ < slabs_come_until_) return WakeAt(slabs_come_until_);
  const Bytes most = std::min(options_.host_capacity, host_budgets_.RoundUp(options_.host_step));
  const Bytes wanted = std::min(most, host_.used() + std::max(options_.host_ahead, need));
  // A request that no hole takes wants more even when there is room in sum.
  const bool fragmented = need > Bytes{0} && host_.LargestHole() < need;
  if (host_end_ >= most || (host_end_ >= wanted && !fragmented)) return;
  const Bytes size = std::min(options_.host_step, options_.host_capacity - host_end_);
  host_growing_ = true;
  plan_->push_back(GrowHost{host_end_, size});
}

void Planner::State::FreeDevice(Tensor& tensor) {
  if (tensor.device_block == ExtentMap::kNone) return;
  EndPrefetch(tensor, /*used=*/false);
  Arena* arena = ArenaOf(tensor);
  arena->map.Free(tensor.device_block);
  tensor.device_block = ExtentMap::kNone;
  Touch(arena);
}

void Planner::State::Finish(Tensor& tensor) {
  Client* client = FindClient(tensor.client);
  if (tensor.host_block != ExtentMap::kNone) HostRoomCame();
  FreeHost(tensor);
  if (client != nullptr) {
    Arena* arena = ArenaOf(tensor);
    arena->index.Erase(tensor);
    Unlist(tensor);
    if (tensor.device_block != ExtentMap::kNone) arena->freed.Add(tensor.size, now_);
    FreeDevice(tensor);
    SetInUse(tensor, false);
    --client->tensors;
    arena->live -= tensor.size;
    client->slots[ToInt(tensor.slot)] = kNoRow;
    plan_->push_back(Release{tensor.client, tensor.slot, tensor.id});
    Touch(arena);
  }
  catalog_.Remove(tensor.id);
}

bool Planner::State::FinishIfGone(Tensor& tensor) {
  tensor.copying = false;
  if (!tensor.freed && !tensor.orphan) return false;
  Finish(tensor);
  return true;
}

bool Planner::State::UnderCopyLimit(Bytes bytes, uint32_t copies, Bytes more) const {
  if (copies == 0) return true;
  return copies < options_.in_flight_copies && bytes + more <= options_.in_flight;
}

void Planner::State::Charge(Arena& arena, Bytes size) {
  arena.charged += size;
  devices_[ToInt(arena.device)].held += size;
  tenants_.at(FindClient(arena.client)->tenant).device_held[ToInt(arena.device)] += size;
}

void Planner::State::Refund(Arena& arena, Bytes size) {
  arena.charged -= size;
  devices_[ToInt(arena.device)].held -= size;
  tenants_.at(FindClient(arena.client)->tenant).device_held[ToInt(arena.device)] -= size;
}

void Planner::State::Enqueue(Request request) {
  request.id = ++last_request_;
  request.since = now_;
  Arena* arena = ArenaOf(request.client, request.device);
  arena->waiting.insert(request.id);
  if (request.fail_fast) arena->impatient.insert(request.id);
  waiting_arenas_.insert(arena);
  deadlines_.emplace(request.deadline, request.id);
  Count(request.client, &PlannerStats::waiting, 1);
  BeginWait(request.client);
  requests_.emplace(request.id, request);
  if (request.is_fetch()) fetches_.emplace(request.tensor, request.id);
  Touch(arena);
}

// What was under way for the request that waited longest.
void Planner::State::EndFirst(Arena& arena) {
  EndClaim(arena);
  arena.taking = false;
  arena.waits_for_peak = false;
  arena.peak_until = {};
  arena.reclaim_wait = {};
  arena.reclaim_after = {};
}

void Planner::State::Dequeue(const Request& given) {
  const Request request = given;  // `given` may be the one that is erased
  Arena* arena = ArenaOf(request.client, request.device);
  const bool first = arena->First() == request.id;
  arena->waiting.erase(request.id);
  if (request.fail_fast) arena->impatient.erase(request.id);
  if (first) EndFirst(*arena);
  if (arena->waiting.empty()) waiting_arenas_.erase(arena);
  Forget(request);
  ++answered_;
  Touch(arena);
}

void Planner::State::Forget(const Request& given) {
  const Request request = given;  // `given` may be the one that is erased
  deadlines_.erase({request.deadline, request.id});
  Count(request.client, &PlannerStats::waiting, -1);
  EndWait(request.client);
  Count(request.client, &PlannerStats::waited, now_ - request.since);
  requests_.erase(request.id);
  if (request.is_fetch()) fetches_.erase(request.tensor);
}

void Planner::State::ForgetRequests() {
  for (int i = 0; i < kForgottenPerPass && !gone_requests_.empty(); ++i) {
    std::set<uint64_t>& ids = gone_requests_.front();
    if (ids.empty()) {
      gone_requests_.pop_front();
      continue;
    }
    // Its deadline may have come before.
    if (const auto found = requests_.find(*ids.begin()); found != requests_.end())
      Forget(found->second);
    ids.erase(ids.begin());
  }
  if (!gone_requests_.empty()) WakeAt(now_);
}

const Request& Planner::State::FetchOf(const Tensor& tensor) const {
  return requests_.at(fetches_.at(tensor.id));
}

void Planner::State::Fail(const Request& given, ErrorCode code, const std::string& message) {
  const Request request = given;
  Dequeue(given);
  if (!request.is_fetch()) {
    plan_->push_back(Refuse{request.client, request.slot, {code, message}});
    return;
  }
  Tensor* tensor = catalog_.Find(request.tensor);
  tensor->waiting = false;
  if (tensor->residency == Residency::kAway) List(*tensor);
  Reindex(*tensor);  // it may still be on the device that it was to leave
  plan_->push_back(Deny{request.tensor, {code, message}});
}

std::string Planner::State::WhoHolds(const Request& request) const {
  const size_t device = ToInt(request.device);
  const Client& asker = *clients_.at(request.client);
  std::string text = "device " + std::to_string(device) + ": no room for " +
                     SizeText(request.size) + " within client " + std::to_string(ToInt(asker.id)) +
                     "'s budget of " + SizeText(asker.budgets.device) + " and its tenant's of " +
                     SizeText(tenants_.at(asker.tenant).budgets.device) + "; holders:";
  std::vector<const Client*> holders;
  for (const auto& [id, client] : clients_) {
    if (client->arenas[device] != nullptr && client->arenas[device]->charged > Bytes{0}) {
      holders.push_back(client.get());
    }
  }
  const size_t named = std::min<size_t>(holders.size(), 4);
  std::partial_sort(holders.begin(), holders.begin() + static_cast<ptrdiff_t>(named), holders.end(),
                    [device](const Client* a, const Client* b) {
                      return std::pair(b->arenas[device]->charged, a->id) <
                             std::pair(a->arenas[device]->charged, b->id);
                    });
  for (size_t i = 0; i < named; ++i) {
    const Client& holder = *holders[i];
    text += " client " + std::to_string(ToInt(holder.id)) + " holds " +
            SizeText(holder.arenas[device]->charged) + " (" + SizeText(holder.in_use) + " in use);";
  }
  if (holders.size() > named) text += " " + std::to_string(holders.size() - named) + " more;";
  if (host_.held() >= options_.host_capacity && host_.LargestHole() < request.size) {
    text += " the host pool of " + SizeText(options_.host_capacity) + " is full;";
  }
  return text + " put or free tensors, raise the budgets, or wait longer";
}

TensorId Planner::State::Find(ClientId client, SlotId slot) const {
  const auto found = clients_.find(client);
  if (found == clients_.end() || ToInt(slot) >= found->second->slots.size()) return kNoTensor;
  const uint32_t row = found->second->slots[ToInt(slot)];
  return row == kNoRow ? kNoTensor : catalog_[row].id;
}

TensorView Planner::State::ViewOf(const Tensor& tensor) const {
  TensorView view{tensor.id,     tensor.client,  tensor.slot,   tensor.name,
                  tensor.size,   tensor.device,  Bytes{0},      tensor.residency,
                  tensor.in_use, tensor.dirty(), tensor.on_host};
  if (tensor.device_block != ExtentMap::kNone) {
    view.device_offset =
        clients_.at(tensor.client)->arenas[ToInt(tensor.device)]->map.OffsetOf(tensor.device_block);
  }
  return view;
}

ClientView Planner::State::ViewOf(ClientId id) const {
  const Client& client = *clients_.at(id);
  ClientView view;
  view.client = id;
  view.tenant = client.tenant;
  view.budgets = client.budgets;
  view.tensors = client.tensors;
  view.host_used = client.host_used;
  view.in_use = client.in_use;
  view.waiting = client.stats.waiting;
  for (const auto& arena : client.arenas) {
    if (arena == nullptr) continue;
    view.device_held += arena->charged;
    view.device_used += arena->map.used();
  }
  return view;
}

std::vector<ClientId> Planner::State::Clients() const {
  std::vector<ClientId> ids;
  for (const auto& [id, client] : clients_) ids.push_back(id);
  return ids;
}

TierView Planner::State::DeviceTier(DeviceId device) const {
  TierView view{devices_[ToInt(device)].limit, devices_[ToInt(device)].held, Bytes{0}};
  for (const auto& [id, client] : clients_) {
    const auto& arena = client->arenas[ToInt(device)];
    if (arena != nullptr) view.used += arena->map.used();
  }
  return view;
}

TierView Planner::State::HostTier() const {
  return {options_.host_capacity, host_.held(), host_.used()};
}

Tick Planner::State::NextWake() const {
  Tick next = next_poll_;
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  if (!wakes_.empty()) next = std::min(next, std::get<Tick>(*wakes_.begin()));
  if (!removals_.empty()) next = std::min(next, std::get<Tick>(removals_.front()));
  return next;
}

// What one row claims, against everything that stands elsewhere; adds it to `sums`.
void Planner::State::CheckRow(uint32_t row, Sums* sums) const {
  const Tensor& tensor = catalog_[row];
  if (tensor.id == kNoTensor) return;
  if (tensor.host_block != ExtentMap::kNone) {
    RAVEN_CHECK(host_.OwnerOf(tensor.host_block) == row);
    RAVEN_CHECK(host_.SizeOf(tensor.host_block) >= tensor.size);
    sums->host += host_.SizeOf(tensor.host_block);
  }
  if (tensor.on_host) RAVEN_CHECK(tensor.host_block != ExtentMap::kNone);
  if (tensor.orphan) {
    RAVEN_CHECK(tensor.copying);
    return;
  }
  const auto arena_key = std::pair(tensor.client, tensor.device);
  sums->live[arena_key] += tensor.size;
  ++sums->tensors[tensor.client];
  sums->waits[tensor.client] += tensor.residency == Residency::kArriving && !tensor.prefetched;
  if (tensor.in_use) sums->in_use[tensor.client] += tensor.size;
  if (tensor.host_block != ExtentMap::kNone) sums->host_used[tensor.client] += tensor.size;
  RAVEN_CHECK(Find(tensor.client, tensor.slot) == tensor.id);
  const bool has_device = tensor.device_block != ExtentMap::kNone;
  const bool away = tensor.residency == Residency::kAway || tensor.residency == Residency::kLost;
  RAVEN_CHECK(has_device == !away);
  if (has_device) {
    const Arena& arena = *clients_.at(tensor.client)->arenas[ToInt(tensor.device)];
    RAVEN_CHECK(arena.map.OwnerOf(tensor.device_block) == row);
    const Bytes room = arena.map.SizeOf(tensor.device_block);
    const Bytes whole = tensor.size.RoundUp(kExtentAlignment);
    RAVEN_CHECK(tensor.residency == Residency::kGoing ? room <= whole : room == whole);
  }
  if (tensor.residency == Residency::kAway)
    RAVEN_CHECK(tensor.given_up != (tensor.on_host && !tensor.dirty()));
  RAVEN_CHECK(EvictionIndex::Contains(tensor) == Evictable(tensor));
  if (EvictionIndex::Contains(tensor)) ++sums->indexed[arena_key];
  if (tensor.listed) {
    RAVEN_CHECK(tensor.residency == Residency::kAway);
    ++sums->listed[arena_key];
  }
}

void Planner::State::CheckInvariants() const {
  host_.CheckInvariants();
  Sums sums;
  for (uint32_t row = 0; row < catalog_.rows(); ++row) CheckRow(row, &sums);
  RAVEN_CHECK(sums.host == host_.used());
  for (const auto& [id, request] : requests_) ++sums.waits[request.client];
  size_t waiting = 0;
  std::vector<Bytes> held(devices_.size());
  std::vector<uint32_t> growing(devices_.size());
  std::map<std::pair<TenantId, DeviceId>, Bytes> going;
  for (const auto& [id, client] : clients_) {
    RAVEN_CHECK(client->in_use == sums.in_use[id]);
    RAVEN_CHECK(client->host_used == sums.host_used[id]);
    RAVEN_CHECK(client->tensors == sums.tensors[id]);
    RAVEN_CHECK(client->waits == sums.waits[id]);
    for (const auto& arena : client->arenas) {
      if (arena == nullptr) continue;
      arena->map.CheckInvariants();
      RAVEN_CHECK(arena->copying_out <= arena->leaving);
      RAVEN_CHECK(arena->leaving_slabs <= arena->leaving);
      Bytes removing;
      for (const auto& [offset, slab] : arena->removing) removing += slab.size;
      RAVEN_CHECK(removing == arena->being_removed + arena->overdue);
      RAVEN_CHECK(std::count(touched_.begin(), touched_.end(), arena.get()) ==
                  (arena->touched ? 1 : 0));
      going[std::pair(client->tenant, arena->device)] += arena->being_removed + arena->Vacating();
      RAVEN_CHECK(arena->map.held() <= arena->charged);
      RAVEN_CHECK(arena->live == sums.live[std::pair(id, arena->device)]);
      RAVEN_CHECK(arena->index.size() == sums.indexed[std::pair(id, arena->device)]);
      RAVEN_CHECK(arena->due_at.size() + arena->due_order.size() + arena->due_learned.size() ==
                  sums.listed[std::pair(id, arena->device)]);
      RAVEN_CHECK(arena->waiting.empty() != waiting_arenas_.contains(arena.get()));
      RAVEN_CHECK(!arena->waits_for_peak || !arena->waiting.empty());
      for (const uint64_t request : arena->impatient)
        RAVEN_CHECK(arena->waiting.contains(request) && requests_.at(request).fail_fast);
      waiting += arena->waiting.size();
      held[ToInt(arena->device)] += arena->charged;
      growing[ToInt(arena->device)] += arena->growing ? 1 : 0;
    }
  }
  for (const auto& ids : gone_requests_) {
    for (const uint64_t id : ids) waiting += requests_.contains(id) ? 1 : 0;
  }
  RAVEN_CHECK(waiting == requests_.size());
  RAVEN_CHECK(waiting == deadlines_.size());
  RAVEN_CHECK(waiting == stats_.waiting);
  for (size_t i = 0; i < devices_.size(); ++i) {
    Bytes all_going;
    for (const auto& [id, tenant] : tenants_) {
      all_going += tenant.device_going[i];
      RAVEN_CHECK((tenant.device_going[i] == going[{id, DeviceId{static_cast<uint16_t>(i)}}]));
    }
    RAVEN_CHECK(devices_[i].going == all_going);
    RAVEN_CHECK(devices_[i].held == held[i]);
    RAVEN_CHECK(devices_[i].growing == growing[i]);
    RAVEN_CHECK(devices_[i].held <= options_.device_capacity[i]);
  }
}

}  // namespace ravenstore::core
