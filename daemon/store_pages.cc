#include "daemon/store_pages.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/check.h"
#include "daemon/store_requests.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::Error;
using core::ErrorCode;
using core::SlotId;
using core::TensorNumber;
using core::Tick;
using core::ToInt;

// ---- Lease words.

bool StorePages::Revoke(ClientPages* pages, TensorNumber tensor) {
  Part& part = tables_.PartOf(pages);
  const ClientId client = part.client->id;
  // The client waits for a tensor that moves: its word is no other's.
  if (!requests_.moves().Moves(client, tensor) && !hooks_.drop(client, SlotOf(tensor)))
    return false;
  part.client->rows[ToInt(SlotOf(tensor))].past.prefetched = false;
  part.client->SetAway(SlotOf(tensor), true);
  return true;
}

bool StorePages::IsUnused(ClientPages* pages, TensorNumber tensor) const {
  return hooks_.is_idle(tables_.parts.at(pages)->client->id, SlotOf(tensor));
}

void StorePages::Publish(ClientPages* pages, TensorNumber tensor) {
  Part& part = tables_.PartOf(pages);
  part.client->SetAway(SlotOf(tensor), false);
  part.client->rows[ToInt(SlotOf(tensor))].past.prefetched = true;
  ++part.client->stats.prefetches;
  ++tables_.stats.prefetches;
  hooks_.publish(part.client->id, SlotOf(tensor), pages->device(), pages->AddressOf(tensor));
}

void StorePages::Grant(ClientPages* pages, TensorNumber tensor) {
  Part& part = tables_.PartOf(pages);
  part.granted.push_back(SlotOf(tensor));
  tables_.Progressed(part);
}

void StorePages::Refuse(ClientPages* pages, TensorNumber tensor) {
  Part& part = tables_.PartOf(pages);
  part.refused.push_back(SlotOf(tensor));
  tables_.Progressed(part);
}

bool StorePages::GrantEarly(ClientPages* pages, TensorNumber tensor) {
  Part& part = tables_.PartOf(pages);
  const SlotId slot = SlotOf(tensor);
  if (!requests_.CanGrantEarly(part, slot) ||
      !hooks_.grant_early(part.client->id, slot, pages->device(), pages->AddressOf(tensor)))
    return false;
  requests_.NoteGrantedEarly(part, slot);
  return true;
}

void StorePages::Arrived(ClientPages* pages, TensorNumber tensor) {
  Part& part = tables_.PartOf(pages);
  hooks_.end_early_grant(part.client->id, SlotOf(tensor), core::Ok());
  part.ended_early_grants.push_back(SlotOf(tensor));
  tables_.Progressed(part);
}

void StorePages::Break(ClientPages* pages, TensorNumber tensor) {
  Part& part = tables_.PartOf(pages);
  Row& row = part.client->rows[tensor];
  const std::string why = row.lost
                              ? requests_.ErrorOf(pages, tensor, core::CallResult::kLost).message
                              : "a copy of its bytes failed";
  hooks_.end_early_grant(part.client->id, SlotOf(tensor), Error{ErrorCode::kLost, why});
  if (!row.lost) row.lost_by = PoolOf(part, tensor);
  row.lost = true;
  row.lives = false;
  part.client->live -= row.size;
  part.ended_early_grants.push_back(SlotOf(tensor));
  // It was about to move to another device.
  if (row.request) part.refused.push_back(SlotOf(tensor));
  tables_.Progressed(part);
}

core::PoolId StorePages::PoolOf(const Part& part, TensorNumber tensor) const {
  const core::PageExecutor& executor = tables_.ExecutorOf(part);
  const core::plan::UnitSpan& units = executor.tensors()[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    const core::plan::UnitState& state = executor.books()[units[i]];
    if (!state.IsResident() && state.pool != core::plan::kNoPool)
      return pools_.Of(part.pages->device())[state.pool]->of.id;
  }
  return core::kHostPool;
}

// ---- Moves.

void StorePages::Mapped(ClientPages* pages, core::plan::Unit unit) {
  Part& part = tables_.PartOf(pages);
  tables_.Moved(part).Mapped(unit);
}

void StorePages::Unmapped(ClientPages* pages, core::plan::PhysicalPage page) {
  Part& part = tables_.PartOf(pages);
  tables_.Moved(part).Unmapped(page);
}

// A copy is redundant when the unit is resident: it may make room for another client's.
void StorePages::CopiedIn(ClientPages* pages, core::plan::Unit unit, bool ok) {
  Part& part = tables_.PartOf(pages);
  if (tables_.stats.waiting > 0) rooms_.Grew();
  tables_.SchedulerOf(part).Arrived(part.client->id, unit, core::PageScheduler::Arrival::kCopiedIn,
                                    ok);
}

void StorePages::CopiedOut(ClientPages* pages, core::plan::Unit unit, bool ok) {
  Part& part = tables_.PartOf(pages);
  if (tables_.stats.waiting > 0) rooms_.Grew();
  tables_.Moved(part).CopiedOut(unit, ok);
}

void StorePages::MapsQueued(ClientPages* pages) {
  hooks_.send_maps(tables_.PartOf(pages).client->id);
}

void StorePages::RetryAt(ClientPages* pages, Tick at) {
  retries_.insert({at, pages});
}

void StorePages::Retry() {
  while (NextWake() <= tables_.now) {
    ClientPages* const pages = retries_.extract(retries_.begin()).value().second;
    pages->Retry();
    Progressed(pages);
  }
}

void StorePages::Forget(const StoreTables::Client& client) {
  for (const auto& [device, part] : client.parts) {
    const ClientPages* const pages = part.pages.get();
    std::erase_if(retries_, [&](const auto& retry) { return retry.second == pages; });
  }
}

void StorePages::PageDestroyed(ClientPages* pages) {
  Part& part = tables_.PartOf(pages);
  tables_.SchedulerOf(part).PageReleased(part.client->id);
  tables_.Progressed(part);
}

void StorePages::Progressed(ClientPages* pages) {
  tables_.Progressed(tables_.PartOf(pages));
}

bool StorePages::MayMakePage(ClientPages* pages) {
  return rooms_.MayMakePage(*pages);
}

void StorePages::UpdateRoom(ClientPages* pages) {
  rooms_.UpdateRoom(tables_.PartOf(pages));
}

void StorePages::CopyMoved(ClientPages* pages, core::plan::Unit unit, core::plan::PoolNumber pool) {
  Part& part = tables_.PartOf(pages);
  tables_.Moved(part).books().MoveCopy(unit, pool);
  rooms_.UpdateRoom(part);
}

void StorePages::DropCopy(ClientPages* pages, core::plan::Unit unit) {
  Part& part = tables_.PartOf(pages);
  std::vector<TensorNumber> lost;
  tables_.Moved(part).Lose(unit, &lost);
  RAVEN_CHECK(lost.empty());
  tables_.Progressed(part);
}

}  // namespace ravenstore::daemon
