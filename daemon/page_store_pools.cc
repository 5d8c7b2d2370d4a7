// The pools for copies of PageStore: their room for each client, and memory that its owner wants
// back.
#include <algorithm>
#include <chrono>
#include <utility>

#include "core/books/page_views.h"
#include "daemon/page_store.h"

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
constexpr auto kEvacuateAgain = std::chrono::milliseconds(5);

// After pinned blocks wanted its memory the host pool does not grow for this time. Idle slabs of
// pinned memory are reclaimed for copies once in this time. Shorter: blocks find less memory, and
// slabs are asked for more often. Longer: copies wait for memory.
constexpr auto kPinnedPause = std::chrono::milliseconds(100);

Bytes BudgetIn(const core::Budgets& budgets, PoolId pool) {
  const auto found = budgets.others.find(pool);
  return found == budgets.others.end() ? Bytes(UINT64_MAX) : found->second;
}

}  // namespace

template <typename Visit>
void PageStore::ForEachUser(const PagePool& pool, Visit visit) {
  for (const auto& [pages, part] : parts_) {
    if (part->client->gone) continue;
    const Members& members = PoolsOf(*part);
    for (PoolNumber number = 0; number < members.size(); ++number) {
      if (members[number]->pool.get() == &pool) visit(*part, number);
    }
  }
}

bool PageStore::HavePoolsChanged() {
  uint64_t version = 0;
  for (const auto& [id, member] : pools_.all()) version += member.pool->memory().version();
  return std::exchange(pools_version_, version) != version;
}

void PageStore::DividePools() {
  for (const auto& [id, member] : pools_.all()) {
    if (id != core::kHostPool) {
      Divide(id, member);
      continue;
    }
    ForEachUser(*member.pool, [this](Part& part, PoolNumber number) {
      if (SetPool(part, number, HostCapacityOf(part))) Progressed(part.pages.get());
    });
  }
}

void PageStore::Divide(PoolId id, const StorePools::Member& member) {
  std::vector<StorePools::Use> uses;
  std::vector<std::pair<Part*, PoolNumber>> users;
  ForEachUser(*member.pool, [&](Part& part, PoolNumber number) {
    const core::plan::CopyPools& pools = ExecutorOf(part).books().copies().pools();
    const Client& client = *part.client;
    uses.push_back({.client = client.id,
                    .tenant = client.tenant,
                    .used = pools.used(number),
                    .redundant = pools.redundant(number),
                    .client_budget = BudgetIn(quotas_.BudgetsOf(client.id), id),
                    .tenant_budget = BudgetIn(quotas_.BudgetsOf(client.tenant), id)});
    users.emplace_back(&part, number);
  });
  StorePools::Divide(*member.pool, &uses);
  for (size_t i = 0; i < uses.size(); ++i) {
    const auto [part, number] = users[i];
    if (SetPool(*part, number, uses[i].may_have)) Progressed(part->pages.get());
  }
}

Bytes PageStore::HostCapacityOf(const Part& part) {
  const ClientId client = part.client->id;
  const Bytes used = ExecutorOf(part).books().copies().pools().used(part.pages->host());
  core::CopyQuota& copies = quotas_.copies();
  room_grew_ |= copies.SetCopies(client, part.pages->device(), used);
  Bytes room = copies.Room(client);
  // Pages that others have called for leave also where the pool's rest is kept: for those others.
  if (const uint32_t surplus = ExecutorOf(part).books().view().surplus; surplus > 0) {
    using Limit = core::CopyQuota::Limit;
    room = std::max(
        room, std::min({copies.Room(client, Limit::kClient), copies.Room(client, Limit::kTenant),
                        part.pages->page() * surplus}));
  }
  return used + std::min(room, pools_.host().Room());
}

void PageStore::UpdateRoom(ClientPages* pages) {
  const Part& part = PartOf(pages);
  if (!part.client->gone) SetPool(part, pages->host(), HostCapacityOf(part));
}

bool PageStore::SetPool(const Part& part, PoolNumber pool, Bytes capacity) {
  core::plan::CopyPool as = ExecutorOf(part).books().view().limits.pools[pool];
  const StorePools::Member& member = *PoolsOf(part)[pool];
  const core::LinkModel link = member.LinkOf(part.pages->device());
  // A copy was dropped for the call that waits. Another client's copy ahead could take its room.
  // No memory is borrowed from other nodes for units that stay.
  const bool ahead = pool == part.pages->host() ? !room_for_ || *room_for_ == part.client->id
                                                : member.of.pool.kind != core::PoolKind::kRemote;
  if (as.capacity == capacity && as.ahead == ahead && as.in_rate == link.up_bytes_per_second &&
      as.out_rate == link.down_bytes_per_second)
    return false;
  as.capacity = capacity;
  as.ahead = ahead;
  as.in_rate = link.up_bytes_per_second;
  as.out_rate = link.down_bytes_per_second;
  SchedulerOf(part).Moved(part.client->id).books().SetPool(pool, as);
  return true;
}

void PageStore::MakeRoomInPools() {
  for (auto& [id, member] : pools_.all()) {
    PagePool& pool = *member.pool;
    if (pool.Lack() == Bytes{}) continue;
    ForEachUser(pool, [&](Part& part, PoolNumber number) {
      if (const Bytes lack = pool.Lack(); lack > Bytes{})
        SchedulerOf(part).Moved(part.client->id).DropCopies(number, lack);
    });
  }
}

// ---- Memory that comes and goes.

void PageStore::On(const core::PoolGrown& event) {
  pools_.all().at(event.pool).pool->Grown(now_, true);
}

void PageStore::On(const core::PoolGrowFailed& event) {
  pools_.all().at(event.pool).pool->Grown(now_, false);
}

void PageStore::On(const core::PoolShrunk& event) {
  pools_.all().at(event.pool).pool->Released(event.offset, true);
}

void PageStore::On(const core::PoolShrinkFailed& event) {
  pools_.all().at(event.pool).pool->Released(event.offset, false);
}

void PageStore::On(const core::PoolLimit& event) {
  StorePools::Member& member = pools_.all().at(event.pool);
  member.lent = std::min(event.most, member.of.pool.capacity);
  if (!member.is_harvested()) member.pool->SetLimit(member.lent);
  LimitHarvests();
  Evacuate();
}

void PageStore::On(const core::PoolRate& event) {
  pools_.all().at(event.pool).rate = event.bytes_per_second;
  divide_pools_ = true;
}

void PageStore::On(const core::PinnedHeld& event) {
  quotas_.copies().SetPinned(event.tenant, event.bytes);
  pools_.host().SetLimit(Minus(options_.host_capacity, quotas_.copies().pinned()));
  room_grew_ = true;
  EndPinnedWanted();
}

// Memory of the host pool that no copy needs becomes pinned blocks. Copies of pages that are
// resident make room for them.
void PageStore::On(const core::PinnedWanted& event) {
  const core::CopyQuota& copies = quotas_.copies();
  if (FindPresent(event.client) == nullptr ||
      !copies.MayPin(event.client, event.slab, event.slab, {}, Bytes{}))
    return;
  const Bytes left = Minus(options_.host_capacity, copies.pinned() + event.slab);
  ForEachUser(pools_.host(), [&](Part& part, PoolNumber number) {
    const Bytes lack = Minus(pools_.host().memory().used() + pools_.host().reserved(), left);
    if (lack > Bytes{} &&
        copies.MayDrop(part.client->id, event.client, core::CopyQuota::Limit::kPool))
      SchedulerOf(part).Moved(part.client->id).DropCopies(number, lack);
  });
  pools_.host().SetTarget(left);
  pinned_wanted_until_ = now_ + kPinnedPause;
}

void PageStore::ReclaimPinned(const Client& client, core::CopyQuota::Limit limit) {
  if (limit == core::CopyQuota::Limit::kClient || quotas_.copies().pinned() == Bytes{} ||
      now_ < reclaims_pinned_at_)
    return;
  reclaims_pinned_at_ = now_ + kPinnedPause;
  const bool of_tenant = limit == core::CopyQuota::Limit::kTenant;
  replies_.push_back(core::ReclaimPinned{of_tenant ? std::optional(client.tenant) : std::nullopt});
}

void PageStore::EndPinnedWanted() {
  if (std::exchange(pinned_wanted_until_, core::kNever) == core::kNever) return;
  pools_.host().SetTarget(Bytes(UINT64_MAX));
  room_grew_ = true;
}

void PageStore::On(const core::ChunkRecalled& event) {
  pools_.all().at(event.pool).pool->Recall(event.offset);
  Evacuate();
}

void PageStore::On(const core::ChunkKept& event) {
  pools_.all().at(event.pool).pool->Keep(event.offset);
}

void PageStore::On(const core::ChunkLost& event) {
  PagePool& pool = *pools_.all().at(event.pool).pool;
  pool.Lose(event.offset);
  LoseCopies(&pool);
}

void PageStore::On(const core::PoolFailed& event) {
  StorePools::Member& member = pools_.all().at(event.pool);
  if (std::exchange(member.failed, true)) return;
  member.pool->Fail();
  LoseCopies(member.pool.get());
  member.pool->Abort({core::ErrorCode::kLost, member.pool->name() + " failed"});
}

// Memory that a device's own clients need is not harvested.
void PageStore::LimitHarvests() {
  for (uint16_t i = 0; i < devices_.size(); ++i) {
    StorePools::Member* const member = pools_.HarvestOf(DeviceId{i});
    if (member == nullptr) continue;
    const Bytes left = Minus(limits_[i], NeededOf(DeviceId{i}));
    member->pool->SetLimit(std::min(member->lent, left).RoundDown(options_.device_granularity));
    if (member->pool->memory().HasClosed()) evacuate_at_ = std::min(evacuate_at_, now_);
  }
}

Bytes PageStore::NeededOf(DeviceId device) const {
  Bytes held;
  Bytes wanted;
  for (const auto& [id, client] : clients_) {
    const auto part = client->parts.find(device);
    if (part == client->parts.end()) continue;
    const ClientPages& pages = *part->second.pages;
    held += pages.page() * pages.held();
    if (client->gone) continue;
    const uint64_t occupied = ExecutorOf(part->second).books().totals().occupied().pages();
    wanted += pages.page() * std::min<uint64_t>(occupied, quotas_.MostOf(id, device));
  }
  // Creates, and tensors that move here, have no pages yet while they wait for room.
  for (const auto& [deadline, id, slot] : deadlines_) {
    const Client& client = *clients_.at(id);
    const Row& row = client.rows[ToInt(slot)];
    const auto on = row.request->is_create ? row.device : moves_.WaitsOn(id, ToInt(slot));
    if (on != device) continue;
    const Part& part = client.parts.at(device);
    if (ExecutorOf(part).tensors()[ToInt(slot)].pinned) continue;
    wanted += row.size.RoundUp(part.pages->page()) + part.pages->page();
  }
  return std::max(held, wanted);
}

bool PageStore::MayMakePage(ClientPages* pages) {
  const DeviceId device = pages->device();
  const Bytes harvested = Harvested(device);
  if (harvested == Bytes{}) return true;
  Bytes held = pages->page();
  for (const auto& [other, part] : parts_) {
    if (other->device() == device) held += other->page() * other->held();
  }
  return held + harvested <= limits_[ToInt(device)];
}

void PageStore::Evacuate() {
  bool again = false;
  for (auto& [id, member] : pools_.all()) {
    if (!member.comes_and_goes() || !member.pool->memory().HasClosed()) continue;
    ForEachUser(*member.pool,
                [&](Part& part, PoolNumber number) { again |= part.pages->Evacuate(number); });
  }
  evacuate_at_ = again ? now_ + kEvacuateAgain : core::kNever;
}

void PageStore::CopyMoved(ClientPages* pages, Unit unit, PoolNumber pool) {
  Part& part = PartOf(pages);
  SchedulerOf(part).Moved(part.client->id).books().MoveCopy(unit, pool);
  UpdateRoom(pages);
}

void PageStore::DropCopy(ClientPages* pages, Unit unit) {
  Part& part = PartOf(pages);
  std::vector<TensorNumber> lost;
  SchedulerOf(part).Moved(part.client->id).Lose(unit, &lost);
  RAVEN_CHECK(lost.empty());
  Progressed(pages);
}

// ---- Copies that are lost.

void PageStore::LoseCopies(PagePool* pool) {
  ForEachUser(*pool, [&](Part& part, PoolNumber number) {
    for (const Unit unit : part.pages->LoseCopies(number)) LoseUnit(part, unit);
    Progressed(part.pages.get());
  });
}

void PageStore::LoseUnit(Part& part, Unit unit) {
  core::PageScheduler& scheduler = SchedulerOf(part);
  const core::PageExecutor& executor = ExecutorOf(part);
  const PoolNumber pool = executor.books()[unit].pool;
  const bool loses = !executor.books()[unit].IsResident() && pool != core::plan::kNoPool;
  const auto in = executor.tensors().In(unit);
  const std::vector<TensorNumber> tensors(in.begin(), in.end());
  for (const TensorNumber tensor : tensors) {
    if (!loses) break;
    Row& row = part.client->rows[tensor];
    row.lost = true;
    row.lost_by = PoolsOf(part)[pool]->of.id;
    // Its request waits for room, or for these bytes.
    if (row.request && scheduler.Refuse(part.client->id, tensor))
      part.refused.push_back(SlotId{tensor});
  }
  std::vector<TensorNumber> lost;
  scheduler.Moved(part.client->id).Lose(unit, &lost);
  for (const TensorNumber tensor : lost) {
    Row& row = part.client->rows[tensor];
    SetAway(part, SlotId{tensor}, false);
    if (std::exchange(row.lives, false)) part.client->live -= row.size;
  }
}

// ---- Views.

Bytes PageStore::Harvested(DeviceId device) const {
  const StorePools::Member* const member = pools_.HarvestOf(device);
  return member == nullptr ? Bytes{} : member->pool->memory().committed();
}

Bytes PageStore::HarvestStuck(DeviceId device) const {
  const StorePools::Member* const member = pools_.HarvestOf(device);
  return member == nullptr ? Bytes{} : member->pool->memory().stuck();
}

std::vector<PoolId> PageStore::OtherPools() const {
  std::vector<PoolId> ids;
  for (const auto& [id, member] : pools_.all()) {
    if (id != core::kHostPool) ids.push_back(id);
  }
  return ids;
}

}  // namespace ravenstore::daemon
