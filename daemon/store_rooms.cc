#include "daemon/store_rooms.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "core/books/page_views.h"
#include "core/check.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::ClientId;
using core::DeviceId;
using core::PoolId;
using core::SlotId;
using core::TensorNumber;
using core::ToInt;
using core::plan::PoolNumber;
using core::plan::Unit;

namespace {

// Memory that is wanted back is looked at again after that time. Shorter: the loop does little
// else. Longer: its owner waits.
constexpr auto kDrainAgain = std::chrono::milliseconds(5);

// After pinned blocks wanted its memory the host pool does not grow for this time. Shorter: blocks
// find less memory. Longer: copies wait for memory.
constexpr auto kPinnedPause = std::chrono::milliseconds(100);

// Idle slabs of pinned memory are reclaimed for copies, or a unit comes back to a free page, once
// in this time. Shorter: slabs are asked for more often, and units come back that their clients do
// not use. Longer: copies wait for memory.
constexpr auto kReclaimAgain = std::chrono::milliseconds(100);

Bytes BudgetIn(const core::Budgets& budgets, PoolId pool) {
  const auto found = budgets.others.find(pool);
  return found == budgets.others.end() ? Bytes(UINT64_MAX) : found->second;
}

// Bytes of the device that clients hold or wait for, without harvested memory.
Bytes NeededOf(const StoreTables& tables, const StoreRooms::MovesTo& moves_to, DeviceId device) {
  Bytes held;
  Bytes wanted;
  for (const auto& [id, client] : tables.clients) {
    const auto part = client->parts.find(device);
    if (part == client->parts.end()) continue;
    const ClientPages& pages = *part->second.pages;
    held += pages.page() * pages.held();
    if (client->departed) continue;
    const uint64_t occupied = tables.ExecutorOf(part->second).books().totals().occupied().pages();
    wanted += pages.page() * std::min<uint64_t>(occupied, tables.quotas.MostOf(id, device));
  }
  // Creates, and tensors that move here, have no pages yet while they wait for room.
  for (const auto& [deadline, id, slot] : tables.deadlines) {
    const StoreTables::Client& client = *tables.clients.at(id);
    const StoreTables::Row& row = client.rows[ToInt(slot)];
    const auto on = row.request->is_create ? row.device : moves_to(id, ToInt(slot));
    if (on != device) continue;
    const StoreTables::Part& part = client.parts.at(device);
    if (tables.ExecutorOf(part).tensors()[ToInt(slot)].pinned) continue;
    wanted += row.size.RoundUp(part.pages->page()) + part.pages->page();
  }
  return std::max(held, wanted);
}

// Of each device.
std::vector<StoreRooms::Exchanges> ExchangesOf(const StoreTables& tables) {
  std::vector<StoreRooms::Exchanges> exchanges(tables.devices.size());
  for (const auto& [pages, part] : tables.parts) {
    if (part->client->departed) continue;
    const core::PageBooks& books = tables.ExecutorOf(*part).books();
    const core::plan::CopyPools& pools = books.copies().pools();
    const core::plan::MoveView view = books.view();
    StoreRooms::Exchanges& of = exchanges[ToInt(pages->device())];
    of.lacks |= core::plan::AwaitsReturn(view) &&
                books.memory().pages() + view.expected < view.limits.pages;
    of.may_follow |= pools.used(pages->host()) > pools.redundant(pages->host());
  }
  return exchanges;
}

// A call of the client waits, or one of others that its pages are to leave for.
bool AwaitsRoom(const StoreTables& tables, const StoreTables::Part& part) {
  return !part.client->departed &&
         (part.client->stats.waiting > 0 ||
          (tables.stats.waiting > 0 && tables.ExecutorOf(part).books().view().surplus > 0));
}

// Calls wait, and no other tenant's.
bool WaitsAlone(const StoreTables& tables, core::TenantId tenant) {
  return tables.stats.waiting > 0 &&
         std::none_of(tables.clients.begin(), tables.clients.end(), [tenant](const auto& client) {
           return client.second->tenant != tenant && client.second->stats.waiting > 0;
         });
}

// A call of the part has reached the limit. A unit comes back from the host pool if its client has
// a free page for it. Returns false if there is none.
bool BringBack(StoreTables* tables, const StoreTables::Part& part, core::CopyQuota::Limit limit) {
  for (const auto& [pages, other] : tables->parts) {
    if (other->client->departed ||
        !tables->quotas.copies().MayDrop(other->client->id, part.client->id, limit))
      continue;
    const auto unit =
        core::plan::NextReturn(tables->ExecutorOf(*other).books().view(), pages->host());
    if (!unit) continue;
    tables->Moved(*other).books().Demand(*unit);
    tables->Progressed(*other);
    return true;
  }
  return false;
}

}  // namespace

StoreRooms::StoreRooms(const Options& options, StoreTables* tables, StorePools* pools, Hooks hooks)
    : options_(options), tables_(*tables), pools_(*pools), hooks_(std::move(hooks)) {}

template <typename Visit>
void StoreRooms::ForEachUser(const PagePool& pool, Visit visit) {
  for (const auto& [pages, part] : tables_.parts) {
    if (part->client->departed) continue;
    const auto& members = pools_.Of(part->pages->device());
    for (PoolNumber number = 0; number < members.size(); ++number) {
      if (members[number]->pool.get() == &pool) visit(*part, number);
    }
  }
}

bool StoreRooms::HavePoolsChanged() {
  uint64_t version = 0;
  for (const auto& [id, member] : pools_.all()) version += member.pool->memory().version();
  return std::exchange(pools_version_, version) != version;
}

void StoreRooms::Divide() {
  exchanges_ = ExchangesOf(tables_);
  for (const auto& [id, member] : pools_.all()) {
    if (id != core::kHostPool) {
      Divide(id, member);
      continue;
    }
    ForEachUser(*member.pool, [this](Part& part, PoolNumber number) {
      if (SetPool(part, number, HostRoomOf(part))) tables_.Progressed(part);
    });
  }
}

void StoreRooms::Divide(PoolId id, const StorePools::Member& member) {
  std::vector<StorePools::Use> uses;
  std::vector<std::pair<Part*, PoolNumber>> users;
  ForEachUser(*member.pool, [&](Part& part, PoolNumber number) {
    const core::plan::CopyPools& pools = tables_.ExecutorOf(part).books().copies().pools();
    const StoreTables::Client& client = *part.client;
    uses.push_back({.client = client.id,
                    .tenant = client.tenant,
                    .used = pools.used(number),
                    .redundant = pools.redundant(number),
                    .client_budget = BudgetIn(tables_.quotas.BudgetsOf(client.id), id),
                    .tenant_budget = BudgetIn(tables_.quotas.BudgetsOf(client.tenant), id)});
    users.emplace_back(&part, number);
  });
  StorePools::Divide(*member.pool, &uses);
  for (size_t i = 0; i < uses.size(); ++i) {
    const auto [part, number] = users[i];
    if (SetPool(*part, number, {.capacity = uses[i].may_have})) tables_.Progressed(*part);
  }
}

// Where creates have filled the pool or a tenant's part of it, a tensor could not leave for another
// to come back. One page of each is kept for that. An exchange of one client uses it at a time.
// Until a unit has come back no page is born on devices with such tensors.
StoreRooms::Room StoreRooms::HostRoomOf(const Part& part) {
  using Limit = core::CopyQuota::Limit;
  const ClientId client = part.client->id;
  const PoolNumber host = part.pages->host();
  const core::plan::MoveView view = tables_.ExecutorOf(part).books().view();
  core::CopyQuota& copies = tables_.quotas.copies();
  grew_ |= copies.SetCopies(client, part.pages->device(), view.copies.used(host));
  Bytes of_pool = copies.Room(client, Limit::kPool);
  // Pages that other tenants have called for leave also where the pool's rest is kept: for those.
  if (view.surplus > 0 && !WaitsAlone(tables_, part.client->tenant))
    of_pool = std::max(of_pool, part.pages->page() * view.surplus + copies.exchange());
  const Bytes shared =
      std::min({copies.Room(client, Limit::kTenant), of_pool, pools_.host().Room()});
  const Bytes room = std::min(copies.Room(client, Limit::kClient), shared);
  const Exchanges& on = exchanges_[ToInt(part.pages->device())];
  // A page that others have called for leaves for such a call alone: if a create had it, no unit
  // would come back, and no page could be born.
  const bool exchanges = view.surplus > 0 ? on.lacks : core::plan::AwaitsReturn(view);
  return {
      .capacity = view.copies.used(host) + room,
      .kept = Minus(room + copies.exchange(), shared),
      .exchanges = exchanges,
      .may_create = !on.may_follow || shared + view.copies.redundant(host) >= copies.exchange()};
}

void StoreRooms::UpdateRoom(const Part& part) {
  if (!part.client->departed) SetPool(part, part.pages->host(), HostRoomOf(part));
}

void StoreRooms::BeginCreate(const Part& part) {
  // Limits that were set before the call count.
  if (std::exchange(divides_, false)) Divide();
  SetPool(part, part.pages->host(), {.capacity = tables_.quotas.copies().Most(part.client->id)});
}

void StoreRooms::Forget(ClientId client) {
  if (room_for_ == client) room_for_.reset();
}

void StoreRooms::WakeForRoom() {
  if (!std::exchange(grew_, false)) return;
  for (const auto& [pages, part] : tables_.parts) {
    if (AwaitsRoom(tables_, *part)) tables_.Progressed(*part);
  }
}

void StoreRooms::Work(bool is_busy) {
  if (is_busy) LimitHarvests();
  // A call that waits may have the room of copies that have become redundant.
  const bool waits = is_busy && tables_.stats.waiting > 0;
  if (HavePoolsChanged() || divides_ || waits) Divide();
  divides_ = false;
  if (tables_.now >= drain_at_) DrainPools();
  if (tables_.now >= pinned_wanted_until_) EndPinnedWanted();
}

core::Tick StoreRooms::NextWake() const {
  return std::min(drain_at_ > tables_.now ? drain_at_ : core::kNever, pinned_wanted_until_);
}

bool StoreRooms::SetPool(const Part& part, PoolNumber pool, const Room& room) {
  core::plan::CopyPool as = tables_.ExecutorOf(part).books().view().limits.pools[pool];
  const StorePools::Member& member = *pools_.Of(part.pages->device())[pool];
  const core::LinkModel link = member.LinkOf(part.pages->device());
  // A copy was dropped for the call that waits. Another client's copy ahead could take its room.
  // No memory is borrowed from other nodes for units that stay.
  const bool ahead = pool == part.pages->host() ? !room_for_ || *room_for_ == part.client->id
                                                : member.of.pool.kind != core::PoolKind::kRemote;
  if (as.capacity == room.capacity && as.kept == room.kept && as.exchanges == room.exchanges &&
      as.may_create == room.may_create && as.ahead == ahead &&
      as.in_rate == link.up_bytes_per_second && as.out_rate == link.down_bytes_per_second)
    return false;
  as.capacity = room.capacity;
  as.kept = room.kept;
  as.exchanges = room.exchanges;
  as.may_create = room.may_create;
  as.ahead = ahead;
  as.in_rate = link.up_bytes_per_second;
  as.out_rate = link.down_bytes_per_second;
  tables_.Moved(part).books().SetPool(pool, as);
  return true;
}

void StoreRooms::MakeRoomInPools() {
  for (auto& [id, member] : pools_.all()) {
    PagePool& pool = *member.pool;
    if (pool.Lack() == Bytes{}) continue;
    ForEachUser(pool, [&](Part& part, PoolNumber number) {
      if (const Bytes lack = pool.Lack(); lack > Bytes{})
        tables_.Moved(part).DropCopies(number, lack);
    });
  }
}

void StoreRooms::MakeRoomForCopies(const Part& part) {
  using Limit = core::CopyQuota::Limit;
  const core::CopyQuota& copies = tables_.quotas.copies();
  const ClientId asker = part.client->id;
  if (!AwaitsRoom(tables_, part)) {
    if (room_for_ == asker) room_for_.reset();
    return;
  }
  UpdateRoom(part);
  const core::plan::MoveView view = tables_.ExecutorOf(part).books().view();
  const core::plan::CopyPool& host = view.limits.pools[part.pages->host()];
  auto lacks = core::plan::LackedCopyRoom(view);
  if (lacks && !host.exchanges) *lacks += host.kept;
  if (!view.copies.MayCreate() && core::plan::AwaitsCreation(view)) lacks = copies.exchange();
  if (!lacks) return;
  for (const Limit limit : {Limit::kClient, Limit::kTenant, Limit::kPool}) {
    Bytes room = copies.Room(asker, limit);
    if (limit == Limit::kPool) room = std::min(room, pools_.host().Room());
    if (room >= *lacks) continue;
    if (DropCopyFor(part, limit) || tables_.now < reclaims_at_) return;
    const bool reclaims = BringBack(&tables_, part, limit) || ReclaimPinned(*part.client, limit);
    if (reclaims) reclaims_at_ = tables_.now + kReclaimAgain;
    return;
  }
}

bool StoreRooms::DropCopyFor(const Part& part, core::CopyQuota::Limit limit) {
  const core::CopyQuota& copies = tables_.quotas.copies();
  const ClientId asker = part.client->id;
  const Part* first = nullptr;
  for (const auto& [pages, other] : tables_.parts) {
    const ClientId holder = other->client->id;
    if (other == &part || other->client->departed || !copies.MayDrop(holder, asker, limit))
      continue;
    if (tables_.ExecutorOf(*other).books().copies().pools().redundant(pages->host()) == Bytes{})
      continue;
    if (first == nullptr || copies.RankOf(holder, asker) < copies.RankOf(first->client->id, asker))
      first = other;
  }
  if (first == nullptr) return false;
  room_for_ = asker;
  UpdateRoom(*first);
  // Its memory is free after the next start of the executor.
  core::PageBooks& books = tables_.Moved(*first).books();
  books.MoveCopy(*core::CopyToDrop(books, first->pages->host()), core::plan::kNoPool);
  tables_.Progressed(*first);
  return true;
}

// ---- Memory that comes and goes.

void StoreRooms::On(const core::PoolGrown& event) {
  PoolOf(event.pool).Grown(tables_.now, true);
}

void StoreRooms::On(const core::PoolGrowFailed& event) {
  PoolOf(event.pool).Grown(tables_.now, false);
}

void StoreRooms::On(const core::PoolShrunk& event) {
  PoolOf(event.pool).Released(event.offset, true);
}

void StoreRooms::On(const core::PoolShrinkFailed& event) {
  PoolOf(event.pool).Released(event.offset, false);
}

void StoreRooms::On(const core::PoolLimit& event) {
  StorePools::Member& member = pools_.all().at(event.pool);
  member.lent = std::min(event.most, member.of.pool.capacity);
  if (!member.is_harvested()) member.pool->SetLimit(member.lent);
  LimitHarvests();
  DrainPools();
}

void StoreRooms::On(const core::PoolRate& event) {
  pools_.all().at(event.pool).rate = event.bytes_per_second;
  divides_ = true;
}

void StoreRooms::On(const core::PinnedHeld& event) {
  tables_.quotas.copies().SetPinned(event.tenant, event.bytes);
  pools_.host().SetLimit(Minus(options_.host_capacity, tables_.quotas.copies().pinned()));
  grew_ = true;
  EndPinnedWanted();
}

void StoreRooms::On(const core::PinnedUsed& event) {
  const auto client = tables_.clients.find(event.client);
  if (client == tables_.clients.end()) return;
  client->second->pinned = event.bytes;
  if (client->second->departed) return;
  tables_.quotas.copies().SetPinned(event.client, event.bytes);
  grew_ = true;
}

// Memory of the host pool that no copy needs becomes pinned blocks. Copies of pages that are
// resident make room for them.
void StoreRooms::On(const core::PinnedWanted& event) {
  const core::CopyQuota& copies = tables_.quotas.copies();
  if (tables_.FindPresent(event.client) == nullptr ||
      !copies.MayPin(event.client, event.slab, event.slab, {}, Bytes{}))
    return;
  const Bytes left = Minus(options_.host_capacity, copies.pinned() + event.slab);
  ForEachUser(pools_.host(), [&](Part& part, PoolNumber number) {
    const Bytes lack = Minus(pools_.host().memory().used() + pools_.host().reserved(), left);
    if (lack > Bytes{} &&
        copies.MayDrop(part.client->id, event.client, core::CopyQuota::Limit::kPool))
      tables_.Moved(part).DropCopies(number, lack);
  });
  pools_.host().SetTarget(left);
  pinned_wanted_until_ = tables_.now + kPinnedPause;
}

bool StoreRooms::ReclaimPinned(const StoreTables::Client& client, core::CopyQuota::Limit limit) {
  if (limit == core::CopyQuota::Limit::kClient || tables_.quotas.copies().pinned() == Bytes{})
    return false;
  const bool of_tenant = limit == core::CopyQuota::Limit::kTenant;
  hooks_.reclaim({of_tenant ? std::optional(client.tenant) : std::nullopt});
  return true;
}

void StoreRooms::EndPinnedWanted() {
  if (std::exchange(pinned_wanted_until_, core::kNever) == core::kNever) return;
  pools_.host().SetTarget(Bytes(UINT64_MAX));
  grew_ = true;
}

void StoreRooms::On(const core::ChunkRecalled& event) {
  PoolOf(event.pool).Recall(event.offset);
  DrainPools();
}

void StoreRooms::On(const core::ChunkKept& event) {
  PoolOf(event.pool).Keep(event.offset);
}

void StoreRooms::On(const core::ChunkLost& event) {
  PagePool& pool = PoolOf(event.pool);
  pool.Lose(event.offset);
  LoseCopies(&pool);
}

void StoreRooms::On(const core::PoolFailed& event) {
  StorePools::Member& member = pools_.all().at(event.pool);
  if (std::exchange(member.failed, true)) return;
  member.pool->Fail();
  LoseCopies(member.pool.get());
  member.pool->Abort({core::ErrorCode::kLost, member.pool->name() + " failed"});
}

// Memory that a device's own clients need is not harvested.
void StoreRooms::LimitHarvests() {
  for (uint16_t i = 0; i < tables_.devices.size(); ++i) {
    StorePools::Member* const member = pools_.HarvestOf(DeviceId{i});
    if (member == nullptr) continue;
    const Bytes left =
        Minus(tables_.On(DeviceId{i}).limit, NeededOf(tables_, hooks_.moves_to, DeviceId{i}));
    member->pool->SetLimit(std::min(member->lent, left).RoundDown(options_.device_granularity));
    if (member->pool->memory().HasClosed()) drain_at_ = std::min(drain_at_, tables_.now);
  }
}

bool StoreRooms::MayMakePage(const ClientPages& pages) const {
  const DeviceId device = pages.device();
  const Bytes harvested = pools_.Harvested(device);
  if (harvested == Bytes{}) return true;
  Bytes held = pages.page();
  for (const auto& [other, part] : tables_.parts) {
    if (other->device() == device) held += other->page() * other->held();
  }
  return held + harvested <= tables_.On(device).limit;
}

void StoreRooms::DrainPools() {
  bool again = false;
  for (auto& [id, member] : pools_.all()) {
    if (!member.has_chunks() || !member.pool->memory().HasClosed()) continue;
    ForEachUser(*member.pool,
                [&](Part& part, PoolNumber number) { again |= part.pages->DrainPool(number); });
  }
  drain_at_ = again ? tables_.now + kDrainAgain : core::kNever;
}

// ---- Copies that are lost.

void StoreRooms::LoseCopies(PagePool* pool) {
  ForEachUser(*pool, [&](Part& part, PoolNumber number) {
    for (const Unit unit : part.pages->LoseCopies(number)) LoseUnit(part, unit);
    tables_.Progressed(part);
  });
}

void StoreRooms::LoseUnit(Part& part, Unit unit) {
  core::PageScheduler& scheduler = tables_.SchedulerOf(part);
  const core::PageExecutor& executor = tables_.ExecutorOf(part);
  const PoolNumber pool = executor.books()[unit].pool;
  const bool loses = !executor.books()[unit].IsResident() && pool != core::plan::kNoPool;
  const auto in = executor.tensors().In(unit);
  const std::vector<TensorNumber> tensors(in.begin(), in.end());
  for (const TensorNumber tensor : tensors) {
    if (!loses) break;
    Row& row = part.client->rows[tensor];
    row.lost = true;
    row.lost_by = pools_.Of(part.pages->device())[pool]->of.id;
    // Its request waits for room, or for these bytes.
    if (row.request && scheduler.Refuse(part.client->id, tensor))
      part.refused.push_back(SlotId{tensor});
  }
  std::vector<TensorNumber> lost;
  scheduler.Moved(part.client->id).Lose(unit, &lost);
  for (const TensorNumber tensor : lost) {
    Row& row = part.client->rows[tensor];
    part.client->SetAway(SlotId{tensor}, false);
    if (std::exchange(row.lives, false)) part.client->live -= row.size;
  }
}

}  // namespace ravenstore::daemon
