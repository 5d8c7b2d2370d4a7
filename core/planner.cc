#include "core/planner.h"

#include <algorithm>
#include <utility>

#include "core/catalog.h"
#include "core/check.h"
#include "core/planner_state.h"

namespace ravenstore::core {

namespace {
// Looked at in one listing: about a millisecond.
constexpr uint64_t kRowsPerPage = 1 << 15;
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
  const Tensor* tensor = state_->Find(id);
  RAVEN_CHECK(tensor != nullptr);
  return state_->ViewOf(*tensor);
}

std::vector<TensorView> Planner::List(uint64_t* cursor, size_t limit,
                                      const ClientId* client) const {
  std::vector<TensorView> views;
  const Catalog& catalog = state_->catalog();
  // The cursor is the next row plus one, so that 0 can both begin and end.
  uint64_t row = *cursor == 0 ? 0 : *cursor - 1;
  const uint64_t end = std::min<uint64_t>(catalog.rows(), row + kRowsPerPage);
  for (; row < end && views.size() < limit; ++row) {
    const Tensor& tensor = catalog[static_cast<uint32_t>(row)];
    if (tensor.id == kNoTensor || (client != nullptr && tensor.client != *client)) continue;
    if (state_->Find(tensor.id) != nullptr) views.push_back(state_->ViewOf(tensor));
  }
  *cursor = row < catalog.rows() ? row + 1 : 0;
  return views;
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
Bytes Planner::Guaranteed(DeviceId device) const {
  return state_->Guaranteed(device);
}
TierView Planner::HostTier() const {
  return state_->HostTier();
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
