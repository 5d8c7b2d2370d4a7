// Executes the store's actions: replies to clients, and pools that grow or shrink.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "daemon/loop.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::DeviceId;
using core::SlotId;
using core::ToInt;

void Loop::ApplyEvent(const core::Event& event) {
  store_->Apply(event, now_, &plan_);
}

void Loop::Execute() {
  // By index and taken out: carrying out an action may feed events that append to the plan.
  for (size_t i = 0; i < plan_.size(); ++i) {
    core::Action action = std::move(plan_[i]);
    std::visit([this](auto& one) { Do(one); }, action);
  }
  plan_.clear();
}

Session* Loop::SessionOf(const core::TensorOfClient& tensor) {
  Session* session = FindSession(tensor.client);
  if (session == nullptr || session->gone) return nullptr;
  return session->RowOf(tensor.slot).tensor == tensor.tensor ? session : nullptr;
}

void Loop::SendMaps(Session& session) {
  MapOrders::Batch batch = session.maps.Send();
  if (batch.descriptors.empty()) return;
  outbox_.memory_ready(
      std::make_shared<MemoryForClient>(MemoryForClient{session.id(), std::move(batch)}));
}

bool Loop::PollMaps(Session& session) {
  if (session.faulty || !session.maps.HasWork()) return false;
  std::vector<MapOrders::Ended> ended;
  if (!session.maps.Poll(&ended)) Expel(session, "the map ring of this client is corrupt");
  turns_.Spend(session.attachment().tenant, static_cast<uint32_t>(ended.size()));
  store_->MapsEnded(session.id(), ended);
  SendMaps(session);
  return true;
}

core::TenantId Loop::WorkOf(core::PoolId pool) const {
  if (pool == core::kHostPool) return kNoUser;
  const core::Pool& of = options_.topology.pools()[ToInt(pool)];
  return of.kind == core::PoolKind::kRemote ? kOtherNodes : kNoUser;
}

void Loop::Do(const core::GrowPool& action) {
  const bool pins = action.pool == core::kHostPool;
  if (pins) pinned_->RoomComes();  // what nobody needs of it can be unpinned once it is pinned
  NoteChunk(action.pool, /*begins=*/true);
  workers_->Run(WorkOf(action.pool), [this, memory = away_.at(action.pool).get(), action, pins,
                                      name = store_->views().NameOf(action.pool)] {
    const core::Status status = memory->Make(action.offset, action.size);
    if (!status.ok()) {
      spdlog::warn("{}: {} more bytes not had: {}", name, action.size.count(),
                   core::Describe(status.error()));
    }
    mailbox_.Post([this, memory, action, pins, ok = status.ok()] {
      NoteChunk(action.pool, /*begins=*/false);
      if (ok) {
        memory->slabs.Add(action.offset, action.size);
        ApplyEvent(core::PoolGrown{action.pool, action.offset, action.size});
      } else {
        ApplyEvent(core::PoolGrowFailed{action.pool});
      }
      Execute();
      if (pins) pinned_->RoomCame();
    });
  });
}

void Loop::Do(const core::ShrinkPool& action) {
  const bool pins = action.pool == core::kHostPool;
  AwayMemory* const memory = away_.at(action.pool).get();
  memory->slabs.Remove(action.offset);
  if (pins) pinned_->RoomComes();
  NoteChunk(action.pool, /*begins=*/true);
  workers_->Run(WorkOf(action.pool), [this, memory, action, pins,
                                      name = store_->views().NameOf(action.pool)] {
    const core::Status gone = memory->Destroy(action.offset);
    if (!gone.ok())
      spdlog::error("{}: memory not released: {}", name, core::Describe(gone.error()));
    mailbox_.Post([this, action, pins, ok = gone.ok()] {
      NoteChunk(action.pool, /*begins=*/false);
      // What could not be released is not used again, nor is anything made in its place.
      if (ok) {
        ApplyEvent(core::PoolShrunk{action.pool, action.offset, action.size});
      } else {
        LoseHarvest(action.pool, action.size);
        ApplyEvent(core::PoolShrinkFailed{action.pool, action.size, action.offset});
      }
      Execute();
      if (pins) pinned_->RoomCame();
    });
  });
}

void Loop::Do(const core::ReclaimPinned& action) {
  pinned_->ReleaseIdle(action.tenant);
}

void Loop::Do(const core::AllocReply& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  session->RowOf(action.slot) = {};
  session->RowOf(action.slot).tensor = action.tensor;
  LeaseRow lease = session->LeaseOf(action.slot);
  // Anything else and the client broke the protocol: its tensor stays in our books until it goes.
  if (lease.state() != proto::LeaseState::kRequested) return;
  lease.CompleteAlloc(action.tensor, ToInt(action.device), action.offset);
  Record(*session, [&](Recorder& recorder) {
    recorder.Answered(session->id(), now_);
    recorder.Created(store_->views().View(action.tensor), now_);
  });
}

void Loop::Do(const core::AllocError& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  session->RowOf(action.slot) = {};
  Refund(*session, kTensorMemory);
  RememberFailure(*session, action.slot, action.error.message);
  LeaseRow lease = session->LeaseOf(action.slot);
  if (lease.state() == proto::LeaseState::kRequested) lease.FailAlloc(action.error.code);
}

void Loop::Do(const core::FetchReply& action) {
  Session* session = SessionOf(action);
  if (session == nullptr) return;
  LeaseRow lease = session->LeaseOf(action.slot);
  if (lease.state() != proto::LeaseState::kFetching) return;
  session->RowOf(action.slot).ForgetPut();
  lease.CompleteFetch(ToInt(action.device), action.offset, {}, action.recompute);
  Record(*session, [&](Recorder& recorder) { recorder.Answered(session->id(), now_); });
}

bool Loop::Promise(core::ClientId client, SlotId slot, core::DeviceId device, core::Bytes offset) {
  Session* const session = FindSession(client);
  if (session == nullptr || session->gone) return false;
  LeaseRow lease = session->LeaseOf(slot);
  if (lease.state() != proto::LeaseState::kFetching) return false;
  const auto arrival = session->arrivals.Take();
  if (!arrival) return false;
  session->promises[slot] = *arrival;
  session->RowOf(slot).ForgetPut();
  lease.CompleteFetch(ToInt(device), offset, *arrival, /*recompute=*/false);
  Record(*session, [&](Recorder& recorder) { recorder.Answered(session->id(), now_); });
  return true;
}

void Loop::EndPromise(Session& session, SlotId slot, const core::Status& outcome) {
  const proto::WordValue arrival = session.promises.extract(slot).mapped();
  Record(session, [&](Recorder& recorder) { recorder.Answered(session.id(), now_); });
  if (!outcome.ok()) MarkLost(session, slot, outcome.error().message);
  session.segment()->arrivals[arrival.index].store(arrival.value, std::memory_order_release);
  session.arrivals.GiveBack(arrival.index);
}

void Loop::MarkLost(Session& session, SlotId slot, const std::string& why) {
  RememberFailure(session, slot, why);
  // In this order: a client that begins to wait sees the one or the other.
  session.LeaseOf(slot).MarkLost();
  session.segment()->header.losses.fetch_add(1, std::memory_order_release);
}

void Loop::Do(const core::FetchError& action) {
  const SlotId slot = action.slot;
  Session* session = SessionOf(action);
  if (session == nullptr) return;
  RememberFailure(*session, slot, action.error.message);
  LeaseRow lease = session->LeaseOf(slot);
  if (lease.state() != proto::LeaseState::kFetching) return;
  if (!action.stays) return lease.FailFetch(action.error.code);
  const uint64_t idle_word = lease.FailFetchInPlace(
      action.error.code, ToInt(core::DeviceOf(action.stays->pool)), action.stays->offset);
  AwaitStreamComplete(
      *session, slot, action.tensor, idle_word,
      session->segment()->slots[ToInt(slot)].ticket.load(std::memory_order_acquire));
}

void Loop::Do(const core::Release& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  session->RowOf(action.slot) = {};
  Refund(*session, kTensorMemory);
  LeaseRow lease = session->LeaseOf(action.slot);
  if (lease.state() == proto::LeaseState::kFreeing) lease.Release();
}

}  // namespace ravenstore::daemon
