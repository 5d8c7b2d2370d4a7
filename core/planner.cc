#include "core/planner.h"

#include <algorithm>
#include <utility>

#include "core/catalog.h"
#include "core/check.h"
#include "core/planner_state.h"

namespace ravenstore::core {

namespace {
// Looked at in one listing: a tenth of a millisecond.
constexpr uint32_t kSlotsPerPage = 1 << 12;
}  // namespace

Planner::Planner(PlannerOptions options) : state_(std::make_unique<State>(std::move(options))) {}
Planner::~Planner() = default;

void Planner::Apply(const Event& event, Tick now, Plan* plan) {
  state_->Apply(event, now, plan);
}
Tick Planner::NextWake() const {
  return state_->NextWake();
}

TensorId Planner::Find(ClientId client, SlotId slot) const {
  return state_->Find(client, slot);
}
bool Planner::Knows(TensorId tensor) const {
  return state_->Find(tensor) != nullptr;
}

TensorView Planner::View(TensorId id) const {
  const TensorRow* tensor = state_->Find(id);
  RAVEN_CHECK(tensor != nullptr);
  return state_->ViewOf(*tensor);
}

bool Planner::List(ClientId client, uint32_t* slot, size_t limit,
                   std::vector<TensorView>* views) const {
  const uint32_t slots = state_->SlotsOf(client);
  if (*slot >= slots) return false;
  const uint32_t end = *slot + std::min(slots - *slot, kSlotsPerPage);
  for (const size_t full = views->size() + limit; *slot < end && views->size() < full; ++*slot) {
    const TensorRow* tensor = state_->Find(state_->Find(client, SlotId{*slot}));
    if (tensor != nullptr) views->push_back(state_->ViewOf(*tensor));
  }
  return *slot < slots;
}

ClientView Planner::View(ClientId client) const {
  return state_->ViewOf(client);
}
std::vector<ClientId> Planner::Clients() const {
  return state_->Clients();
}
TierView Planner::DeviceTier(DeviceId device) const {
  return state_->DeviceTier(device);
}
Bytes Planner::Guaranteed(DeviceId device, TenantId asker) const {
  return state_->Guaranteed(device, asker);
}
std::string Planner::NameOf(PoolId pool) const {
  return state_->NameOf(pool);
}
TierView Planner::HostTier() const {
  return state_->HostTier();
}

std::vector<PoolId> Planner::OtherPools() const {
  return state_->OtherPools();
}
TierView Planner::OtherTier(PoolId pool) const {
  return state_->OtherTier(pool);
}
Status Planner::MayPin(ClientId client, Bytes block, Bytes slab, const IdlePinned& without) const {
  return state_->MayPin(client, block, slab, without);
}
const PlannerStats& Planner::stats() const {
  return state_->stats();
}
Explanation Planner::Explain(TensorId id, Tick now) const {
  return state_->Explain(*state_->Find(id), now);
}

const PlannerStats& Planner::StatsOf(ClientId client) const {
  return state_->StatsOf(client);
}
void Planner::CheckInvariants() const {
  state_->CheckInvariants();
}

}  // namespace ravenstore::core
