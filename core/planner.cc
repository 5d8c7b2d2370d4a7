#include "core/planner.h"

#include <algorithm>
#include <utility>

#include "core/catalog.h"
#include "core/check.h"
#include "core/scheduler.h"

namespace ravenstore::core {

namespace {
// Looked at in one listing: a tenth of a millisecond.
constexpr uint32_t kSlotsPerPage = 1 << 12;
}  // namespace

Bytes ArenaFor(Bytes capacity) {
  return std::min(capacity, Bytes(kRangeMax.count() / 4)) * 4;
}

Bytes SlabFor(const LinkModel& link) {
  const double copied = link.up_bytes_per_second * Seconds(kSlabMove);
  return Bytes(static_cast<uint64_t>(copied)).RoundUp(MiB(2));
}

Planner::Planner(PlannerOptions options)
    : scheduler_(std::make_unique<Scheduler>(std::move(options))) {}
Planner::~Planner() = default;

void Planner::Apply(const Event& event, Tick now, Plan* plan) {
  scheduler_->Apply(event, now, plan);
}
Tick Planner::NextWake() const {
  return scheduler_->NextWake();
}

TensorId Planner::Find(ClientId client, SlotId slot) const {
  return scheduler_->Find(client, slot);
}
bool Planner::Knows(TensorId tensor) const {
  return scheduler_->Find(tensor) != nullptr;
}

TensorView Planner::View(TensorId id) const {
  const TensorRow* tensor = scheduler_->Find(id);
  RAVEN_CHECK(tensor != nullptr);
  return scheduler_->ViewOf(*tensor);
}

bool Planner::List(ClientId client, uint32_t* slot, size_t limit,
                   std::vector<TensorView>* views) const {
  const uint32_t slots = scheduler_->SlotsOf(client);
  if (*slot >= slots) return false;
  const uint32_t end = *slot + std::min(slots - *slot, kSlotsPerPage);
  for (const size_t full = views->size() + limit; *slot < end && views->size() < full; ++*slot) {
    const TensorRow* tensor = scheduler_->Find(scheduler_->Find(client, SlotId{*slot}));
    if (tensor != nullptr) views->push_back(scheduler_->ViewOf(*tensor));
  }
  return *slot < slots;
}

ClientView Planner::View(ClientId client) const {
  return scheduler_->ViewOf(client);
}
TenantView Planner::View(TenantId tenant, DeviceId device) const {
  return scheduler_->ViewOf(tenant, device);
}
std::vector<ClientId> Planner::Clients() const {
  return scheduler_->Clients();
}
TierView Planner::DeviceTier(DeviceId device) const {
  return scheduler_->DeviceTier(device);
}
Bytes Planner::Harvested(DeviceId device) const {
  return scheduler_->Harvested(device);
}
Bytes Planner::HarvestStuck(DeviceId device) const {
  return scheduler_->HarvestStuck(device);
}
Bytes Planner::Guaranteed(DeviceId device, TenantId asker) const {
  return scheduler_->Guaranteed(device, asker);
}
std::string Planner::NameOf(PoolId pool) const {
  return scheduler_->NameOf(pool);
}
TierView Planner::HostTier() const {
  return scheduler_->HostTier();
}

std::vector<PoolId> Planner::OtherPools() const {
  return scheduler_->OtherPools();
}
TierView Planner::OtherTier(PoolId pool) const {
  return scheduler_->OtherTier(pool);
}
Status Planner::MayPin(ClientId client, Bytes block, Bytes slab, const IdlePinned& without) const {
  return scheduler_->MayPin(client, block, slab, without);
}
const PlannerStats& Planner::stats() const {
  return scheduler_->stats();
}
Explanation Planner::Explain(TensorId id, Tick now) const {
  return scheduler_->Explain(*scheduler_->Find(id), now);
}

const PlannerStats& Planner::StatsOf(ClientId client) const {
  return scheduler_->StatsOf(client);
}
void Planner::CheckInvariants() const {
  scheduler_->CheckInvariants();
}

}  // namespace ravenstore::core
