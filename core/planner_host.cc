// Room in the host pool: for copies of tensors, and from redundant copies.
#include <algorithm>

#include "core/planner_state.h"

namespace ravenstore::core {

namespace {
// Redundant copies discarded in one go when the pool is full.
constexpr int kHostCopiesPerDrop = 256;
constexpr Duration kHostShortFor = std::chrono::milliseconds(100);
}  // namespace

bool Planner::State::AllocateHost(TensorRow& tensor, RedundantCopies redundant) {
  if (tensor.away.is_placed()) return true;
  if (TryAllocateHost(tensor, redundant)) return true;
  if (redundant == RedundantCopies::kKeep) return false;
  host_wanted_ = true;
  ReclaimPinnedFor(tensor);
  return false;
}

bool Planner::State::TryAllocateHost(TensorRow& tensor, RedundantCopies redundant) {
  Client& client = *FindClient(tensor.client);
  if (!MakeHostBudget(client, tensor.size, tensor.size, redundant)) return false;
  if (!MakeHostShare(client, tensor.size, redundant)) return false;
  const auto block = TakeHostRoom(client, tensor, redundant);
  if (!block) return false;
  tensor.away.block = *block;
  quota_.Charge(tensor.client, kHostPool, tensor.size);
  EnsureHostAhead(Bytes{0});
  return true;
}

bool Planner::State::MakeHostBudget(Client& client, Bytes of_client, Bytes of_tenant,
                                    RedundantCopies redundant) {
  const auto exceeded = [&] { return quota_.Exceeded(client.id, kHostPool, of_client, of_tenant); };
  if (!exceeded()) return true;
  if (redundant == RedundantCopies::kKeep) return false;
  DropRedundantCopies(client, of_tenant);
  for (auto other = clients_.begin(); other != clients_.end() && exceeded(); ++other) {
    // Only copies of the same tenant make room within its budget.
    if (exceeded() == Limit::kClient) return false;
    if (other->second->tenant == client.tenant) DropRedundantCopies(*other->second, of_tenant);
  }
  return !exceeded();
}

bool Planner::State::MakeHostShare(Client& client, Bytes more, RedundantCopies redundant) {
  if (quota_.IsWithinHostShare(client.id, more)) return true;
  if (redundant == RedundantCopies::kKeep) return false;
  if (irrevocable_ && quota_.TakeKept(*served_, more)) return true;
  DropRedundantCopies(client, more);
  for (auto other = clients_.begin(); other != clients_.end(); ++other) {
    if (quota_.IsWithinHostShare(client.id, more)) return true;
    if (quota_.MayDropCopiesOf(other->first, client.id)) DropRedundantCopies(*other->second, more);
  }
  return quota_.IsWithinHostShare(client.id, more);
}

void Planner::State::FreeHost(TensorRow& tensor) {
  tensor.away.state = Replica::State::kEmpty;
  if (!tensor.away.is_placed()) return;
  host_.Free(tensor.away.block);
  tensor.away.block = ExtentMap::kNone;
  quota_.Refund(tensor.client, kHostPool, tensor.size);
}

std::optional<ExtentMap::Block> Planner::State::TakeHostRoom(Client& client,
                                                             const TensorRow& tensor,
                                                             RedundantCopies redundant) {
  const uint32_t row = Catalog::RowOf(tensor.id);
  auto block = host_.Allocate(tensor.size, row);
  if (block) return block;
  EnsureHostAhead(tensor.size);
  if (host_.IsGrowing()) return std::nullopt;  // its answer brings us back
  if (redundant == RedundantCopies::kKeep) return std::nullopt;
  DropRedundantCopies(client, tensor.size);
  block = host_.Allocate(tensor.size, row);
  for (auto other = clients_.begin(); other != clients_.end() && !block; ++other) {
    if (other->second->host_copies.empty() || !quota_.MayDropCopiesOf(other->first, client.id))
      continue;
    DropRedundantCopies(*other->second, tensor.size);
    block = host_.Allocate(tensor.size, row);
  }
  return block;
}

void Planner::State::NoteRedundantCopy(TensorRow& tensor) {
  if (tensor.redundant_copy) return;
  Client& client = *FindClient(tensor.client);
  // Stale ids must not pile up where host room is never short: for each that comes two are looked
  // at, of which those that still hold go to the end.
  const size_t most = 2 * client.slots.tensors() + kHostCopiesPerDrop;
  for (int i = 0; i < 2 && client.host_copies.size() > most; ++i) {
    const TensorId oldest = client.host_copies.front();
    client.host_copies.pop_front();
    TensorRow* listed = catalog_.Find(oldest);
    if (listed == nullptr) continue;
    listed->redundant_copy = listed->has_copy() && listed->residency() == Residency::kOnDevice;
    if (listed->redundant_copy) client.host_copies.push_back(oldest);
  }
  client.host_copies.push_back(tensor.id);
  tensor.redundant_copy = true;
  ++redundant_copies_noted_;
}

// Tensors on their device do not need the copy; they become dirty again.
void Planner::State::DropRedundantCopies(Client& client, Bytes need) {
  host_short_until_ = now_ + kHostShortFor;
  Bytes freed;
  for (int i = 0; i < kHostCopiesPerDrop && freed < need && !client.host_copies.empty(); ++i) {
    const TensorId id = client.host_copies.front();
    client.host_copies.pop_front();
    TensorRow* tensor = catalog_.Find(id);
    if (tensor == nullptr) continue;
    tensor->redundant_copy = false;
    if (!tensor->has_copy() || tensor->state() != TensorState::kResident) continue;
    freed += tensor->size;
    FreeHost(*tensor);
    Reindex(*tensor);
  }
}

void Planner::State::EnsureHostAhead(Bytes need) {
  const Bytes capacity = quota_.HostForCopies();
  if (host_.IsGrowing() || host_.leaving() > Bytes{0} || host_.end() >= capacity) return;
  if (now_ < host_backoff_until_) return;
  // The driver does one thing at a time, and pinning 64 MiB takes as long as fifty slabs.
  if (need == Bytes{0} && now_ < slabs_come_until_) return WakeAt(slabs_come_until_);
  if (need == Bytes{0} && now_ < pinned_wanted_until_) return WakeAt(pinned_wanted_until_);
  const Bytes most = std::min(capacity, quota_.HostBudgets().RoundUp(options_.host_step));
  const Bytes wanted = std::min(most, host_.used() + std::max(options_.host_ahead, need));
  // A request that no hole takes wants more even when there is room in sum.
  const bool fragmented = need > Bytes{0} && host_.LargestHole() < need;
  if (host_.end() >= most || (host_.end() >= wanted && !fragmented)) return;
  const auto [offset, size] = host_.Grow(std::min(options_.host_step, capacity - host_.end()));
  plan_->push_back(GrowHost{offset, size});
}

}  // namespace ravenstore::core
