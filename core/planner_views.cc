// What the planner tells of its books, and what must hold of them.
#include <algorithm>

#include "core/check.h"
#include "core/planner_books.h"

namespace ravenstore::core {

namespace {
Explanation::Future FutureOf(const Holding& holding) {
  using Future = Explanation::Future;
  if (holding.never) return Future::kHintedNever;
  if (holding.use_kind == UseKind::kUnknown) return Future::kUnknown;
  if (holding.IsPredicted()) {
    if (holding.correlated) return Future::kCorrelated;
    return holding.dies ? Future::kLearnedFreed : Future::kLearned;
  }
  if (holding.use_kind == UseKind::kLearned) return Future::kLastInFirstOut;
  return holding.use_kind == UseKind::kAt ? Future::kHintedTime : Future::kHintedOrder;
}
}  // namespace

Explanation PlannerBooks::Explain(const TensorRow& tensor, Tick now) const {
  Explanation why;
  why.tensor = ViewOf(tensor);
  if (tensor.has_copy()) why.away_offset = away_[tensor.away.pool].OffsetOf(tensor.away.block);
  why.discarded = tensor.state() == TensorState::kDiscarded;
  why.prefetched = tensor.prefetched;
  why.gets = tensor.logical.gets;
  why.priority = tensor.priority;
  if (tensor.recompute > 0) why.recompute = RecomputeTime(tensor);
  const AwayLinks links = LinksOf(tensor.device());
  const LinkModel& link = links.Of(tensor);
  const auto copied_at = [&](double bytes_per_second) {
    return link.latency + FromSeconds(static_cast<double>(tensor.size.count()) / bytes_per_second);
  };
  why.copy_back = copied_at(link.up_bytes_per_second);
  if (tensor.needs_copy()) why.copy_out = copied_at(link.down_bytes_per_second);
  const auto found = clients_.find(tensor.client);
  if (found == clients_.end()) return why;
  const Client& client = *found->second;
  const Tick virtual_time = client.predictor.VirtualTime(now);
  why.predictions_right = client.stats.predictions_right;
  why.predictions_wrong = client.stats.predictions_wrong;
  if (const ClientArena* arena = client.arenas[ToInt(tensor.device())].get();
      arena != nullptr && EvictionIndex::Contains(tensor))
    why.value = arena->index->Value(tensor, virtual_time, links);
  why.future = FutureOf(tensor);
  why.confidence = client.predictor.ConfidenceIn(tensor);
  why.needed_in = client.predictor.UntilUse(tensor, now);
  if (why.future == Explanation::Future::kUnknown && options_.policy == Policy::kValue)
    why.last_put_ago = virtual_time - Tick(Duration(-tensor.use_key));
  return why;
}

TensorId PlannerBooks::Find(ClientId client, SlotId slot) const {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return kNoTensor;
  const uint32_t row = found->second->slots[ToInt(slot)];
  return row == TensorSlots::kNoRow ? kNoTensor : catalog_[row].id;
}

uint32_t PlannerBooks::SlotsOf(ClientId client) const {
  return static_cast<uint32_t>(clients_.at(client)->slots.size());
}

const TensorRow* PlannerBooks::Find(TensorId id) const {
  const TensorRow* tensor = catalog_.Find(id);
  return tensor == nullptr || !clients_.contains(tensor->client) ? nullptr : tensor;
}

TensorView PlannerBooks::ViewOf(const TensorRow& tensor) const {
  TensorView view{tensor.id,     tensor.client,   tensor.slot,       tensor.name,
                  tensor.size,   tensor.device(), Bytes{0},          tensor.residency(),
                  tensor.in_use, tensor.dirty(),  tensor.has_copy(), tensor.away.pool};
  if (tensor.home.is_placed()) {
    view.device_offset = clients_.at(tensor.client)
                             ->arenas[ToInt(tensor.device())]
                             ->space.OffsetOf(tensor.home.block);
  }
  return view;
}

ClientView PlannerBooks::ViewOf(ClientId id) const {
  const Client& client = *clients_.at(id);
  ClientView view;
  view.client = id;
  view.tenant = client.tenant;
  view.budgets = quota_.BudgetsOf(id);
  view.weight = quota_.BudgetsOf(client.tenant).weight;
  view.priority = quota_.BudgetsOf(client.tenant).priority;
  view.tensors = client.slots.tensors();
  view.pinned = quota_.Of(id, kHostPool).pinned;
  view.host_used = quota_.Of(id, kHostPool).held - view.pinned;
  for (const auto& [pool, there] : away_) {
    if (pool != kHostPool) view.others_used += quota_.Of(id, pool).held;
  }
  view.in_use = client.in_use;
  view.waiting = client.stats.waiting;
  for (const auto& arena : client.arenas) {
    if (arena == nullptr) continue;
    view.device_held += UsageOf(*arena).held;
    view.device_used += arena->space.used();
  }
  return view;
}

std::vector<ClientId> PlannerBooks::Clients() const {
  std::vector<ClientId> ids;
  for (const auto& [id, client] : clients_) ids.push_back(id);
  return ids;
}

TierView PlannerBooks::DeviceTier(DeviceId device) const {
  const PoolId pool = PoolOf(device);
  TierView view{quota_.LimitOf(pool), quota_.Of(pool).held, Bytes{0}};
  for (const auto& [id, client] : clients_) {
    const auto& arena = client->arenas[ToInt(device)];
    if (arena != nullptr) view.used += arena->space.used();
  }
  return view;
}

Bytes PlannerBooks::Harvested(DeviceId device) const {
  const auto pool = away_.HarvestOf(device);
  return pool ? away_[*pool].committed() : Bytes{0};
}

Bytes PlannerBooks::HarvestStuck(DeviceId device) const {
  const auto pool = away_.HarvestOf(device);
  return pool ? away_[*pool].stuck() : Bytes{0};
}

TierView PlannerBooks::HostTier() const {
  Bytes blocks;
  for (const auto& [id, client] : clients_) blocks += quota_.Of(id, kHostPool).pinned;
  return {options_.host_capacity,
          host_.held() + host_.leaving() + host_.stuck() + quota_.Of(kHostPool).pinned,
          host_.used() + blocks};
}

TierView PlannerBooks::OtherTier(PoolId pool) const {
  const AwayPools::Member& there = away_[pool];
  if (there.failed) return {};
  if (there.comes_and_goes()) return {there.most, there.committed(), there.used()};
  return {quota_.LimitOf(pool), there.held(), there.used()};
}

bool PlannerBooks::IsToBeForgotten(const TensorRow& tensor) const {
  return std::any_of(gone_.begin(), gone_.end(), [&](const auto& client) {
    return client->id == tensor.client &&
           client->slots[ToInt(tensor.slot)] == Catalog::RowOf(tensor.id);
  });
}

// Checks one row against everything that is recorded elsewhere; adds it to `sums`.
void PlannerBooks::CheckRow(uint32_t row, Sums* sums) const {
  const TensorRow& tensor = catalog_[row];
  if (tensor.id == kNoTensor) return;
  if (tensor.away.is_placed()) {
    const AwayPools::Member& pool = away_[tensor.away.pool];
    RAVEN_CHECK(pool.OwnerOf(tensor.away.block) == row);
    RAVEN_CHECK(pool.SizeOf(tensor.away.block) >= tensor.size);
    const bool rests = clients_.contains(tensor.client) && !tensor.is_under_way();
    RAVEN_CHECK(!rests || !pool.IsLost(tensor.away.block));
    sums->pools[tensor.away.pool] += pool.SizeOf(tensor.away.block);
    const auto cover = covers_.find(row);
    RAVEN_CHECK((cover != covers_.end()) ==
                (away_[tensor.away.pool].covered || tensor.state() == TensorState::kMovingOn));
    if (cover != covers_.end()) {
      RAVEN_CHECK(host_.OwnerOf(cover->second) == row);
      sums->pools[kHostPool] += host_.SizeOf(cover->second);
    }
  }
  if (tensor.has_copy()) RAVEN_CHECK(tensor.away.is_placed());
  if (tensor.is_under_way()) SumUpCopies(tensor, sums);
  if (tensor.has_copy() && clients_.contains(tensor.client) &&
      tensor.state() != TensorState::kArriving)
    RAVEN_CHECK(!away_[tensor.away.pool].failed);
  if (!clients_.contains(tensor.client)) {
    RAVEN_CHECK(tensor.is_under_way() || IsToBeForgotten(tensor));
    return;
  }
  const auto arena_key = std::pair(tensor.client, tensor.device());
  sums->live[arena_key] += tensor.size;
  ++sums->tensors[tensor.client];
  sums->waits[tensor.client] += tensor.state() == TensorState::kArriving && !tensor.prefetched;
  if (tensor.in_use) sums->in_use[tensor.client] += tensor.size;
  if (tensor.pinned) sums->pinned[arena_key] += tensor.size;
  if (tensor.away.is_placed()) {
    sums->away[{tensor.client, tensor.away.pool}] += tensor.size;
    if (covers_.contains(row)) sums->away[{tensor.client, kHostPool}] += tensor.size;
  }
  RAVEN_CHECK(Find(tensor.client, tensor.slot) == tensor.id);
  const bool has_device = tensor.home.is_placed();
  RAVEN_CHECK(tensor.pinned == (has_device && (tensor.in_use || !tensor.stream_complete)));
  const bool away =
      tensor.residency() == Residency::kAway || tensor.residency() == Residency::kLost;
  RAVEN_CHECK(has_device == !away);
  if (has_device) {
    const ClientArena& arena = *clients_.at(tensor.client)->arenas[ToInt(tensor.device())];
    RAVEN_CHECK(arena.space.OwnerOf(tensor.home.block) == row);
    const Bytes room = arena.space.SizeOf(tensor.home.block);
    const Bytes whole = tensor.size.RoundUp(kExtentAlignment);
    RAVEN_CHECK(tensor.state() == TensorState::kLeavingIrrevocably ? room <= whole : room == whole);
  }
  RAVEN_CHECK(tensor.state() != TensorState::kChosen);
  if (tensor.state() == TensorState::kAway) RAVEN_CHECK(!tensor.dirty());
  if (tensor.state() == TensorState::kMovingOn)
    RAVEN_CHECK(away_[tensor.away.pool].comes_and_goes());
  if (tensor.state() == TensorState::kDiscarded) RAVEN_CHECK(!tensor.has_copy());
  RAVEN_CHECK(EvictionIndex::Contains(tensor) == Evictable(tensor));
  if (EvictionIndex::Contains(tensor)) ++sums->indexed[arena_key];
  if (tensor.listed) {
    RAVEN_CHECK(tensor.state() == TensorState::kAway);
    ++sums->listed[arena_key];
  }
}

void PlannerBooks::SumUpCopies(const Object& object, Sums* sums) {
  const std::pair lane(object.device(), object.away.pool);
  switch (object.state()) {
    case TensorState::kCleaning:
    case TensorState::kCleaningToLeave:
    case TensorState::kCopyingOut:
    case TensorState::kLeavingIrrevocably: sums->out[lane] += object.size; break;
    case TensorState::kRescued: sums->rescued[lane] += object.size; break;
    case TensorState::kArriving: sums->in[lane] += object.size; break;
    default: break;
  }
}

void PlannerBooks::CheckCopies(DeviceId device, Sums* sums) const {
  for (const auto& [pool, state] : away_) {
    const std::pair lane(device, pool);
    const Bytes out = copies_.Of(device, pool, CopyLedger::Way::kOut).bytes;
    RAVEN_CHECK(out >= sums->out[lane]);
    RAVEN_CHECK(out <= sums->out[lane] + sums->rescued[lane]);
    RAVEN_CHECK(copies_.Of(device, pool, CopyLedger::Way::kIn).bytes == sums->in[lane]);
  }
}

// What the arena holds against what its slabs and tensors come to.
void PlannerBooks::CheckQuotas(const ClientArena& arena, const Sums& sums) const {
  Bytes reclaiming;
  Bytes overdue;
  for (const auto& [offset, slab] : arena.space.removals())
    (slab.overdue ? overdue : reclaiming) += slab.size;
  for (const Range& slab : arena.space.closed()) reclaiming += slab.second;
  Bytes held = arena.space.awaited() + reclaiming + overdue;
  for (const Range& slab : arena.space.slabs()) held += slab.second;
  const QuotaTree::Usage& usage = UsageOf(arena);
  RAVEN_CHECK(usage.reclaiming == reclaiming);
  RAVEN_CHECK(usage.overdue == overdue);
  RAVEN_CHECK(usage.held == held);
  const auto pinned = sums.pinned.find({arena.client, arena.device});
  RAVEN_CHECK(usage.pinned == (pinned == sums.pinned.end() ? Bytes{0} : pinned->second));
}

void PlannerBooks::CheckChunks(const AwayPools::Member& pool) const {
  RAVEN_CHECK(pool.committed() <= pool.range());
  if (pool.owner) RAVEN_CHECK(quota_.Harvested(PoolOf(*pool.owner)) == pool.committed());
  for (const auto& [offset, how] : pool.taken) {
    RAVEN_CHECK(pool.Has(offset));
    RAVEN_CHECK(!pool.OpenAt(offset));
  }
}

void PlannerBooks::CheckInvariants() const {
  quota_.CheckInvariants();
  requests_.CheckInvariants();
  Sums sums;
  for (uint32_t row = 0; row < catalog_.rows(); ++row) CheckRow(row, &sums);
  for (const auto& [id, pool] : away_) {
    pool.CheckInvariants();
    if (pool.comes_and_goes()) CheckChunks(pool);
    RAVEN_CHECK(sums.pools[id] == pool.used());
    RAVEN_CHECK(pool.used() + quota_.Of(id).pinned == quota_.Of(id).held);
  }
  for (const auto& [id, request] : requests_.all()) ++sums.waits[request.client];
  std::vector<uint32_t> allocating(devices_.size());
  for (const auto& [id, client] : clients_) {
    RAVEN_CHECK(client->in_use == sums.in_use[id]);
    for (const auto& [pool, state] : away_) {
      const QuotaTree::Usage& usage = quota_.Of(id, pool);
      const Bytes away = sums.away[{id, pool}];
      RAVEN_CHECK(usage.held - usage.pinned == away);
    }
    RAVEN_CHECK(client->slots.tensors() == sums.tensors[id]);
    RAVEN_CHECK(client->predictor.waits() == sums.waits[id]);
    for (const auto& arena : client->arenas) {
      if (arena == nullptr) continue;
      arena->space.CheckInvariants();
      RAVEN_CHECK(arena->copying_out <= arena->leaving);
      RAVEN_CHECK(arena->leaving_slabs <= arena->leaving);
      CheckQuotas(*arena, sums);
      RAVEN_CHECK(std::count(touched_.begin(), touched_.end(), arena.get()) ==
                  (arena->touched ? 1 : 0));
      RAVEN_CHECK(arena->live == sums.live[std::pair(id, arena->device)]);
      RAVEN_CHECK(arena->index->size() == sums.indexed[std::pair(id, arena->device)]);
      size_t listed = 0;
      for (const DueTensors& due : arena->due) listed += due.size();
      RAVEN_CHECK(listed == sums.listed[std::pair(id, arena->device)]);
      RAVEN_CHECK(!arena->waits_for_peak || requests_.Waiting(*arena) > 0);
      allocating[ToInt(arena->device)] += arena->allocation_phase ? 1 : 0;
    }
  }
  for (const auto& [id, line] : requests_.lines()) RAVEN_CHECK(clients_.contains(id.client));
  RAVEN_CHECK(requests_.all().size() == stats_.waiting);
  for (uint16_t i = 0; i < devices_.size(); ++i) {
    RAVEN_CHECK(devices_[i].allocating == allocating[i]);
    CheckCopies(DeviceId{i}, &sums);
  }
}

}  // namespace ravenstore::core
