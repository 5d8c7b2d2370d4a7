#include "daemon/client_replies.h"

#include <utility>
#include <vector>

namespace ravenstore::daemon {

using core::Bytes;
using core::ClientId;
using core::DeviceId;
using core::SlotId;
using core::ToInt;

PageStore::Hooks ClientReplies::StoreHooks() {
  PageStore::Hooks hooks;
  hooks.attachment = [this](ClientId client) {
    Session& session = *sessions_.Find(client);
    return std::pair(session.shared(), &session.maps);
  };
  hooks.drop = [this](ClientId client, SlotId slot) {
    Session& session = *sessions_.Find(client);
    Session::Row& row = session.RowOf(slot);
    const uint64_t idle_word = row.complete_word();
    if (idle_word == 0) return false;
    row.ForgetPut();
    return session.LeaseOf(slot).Drop(idle_word);
  };
  hooks.is_idle = [this](ClientId client, SlotId slot) {
    Session& session = *sessions_.Find(client);
    return session.LeaseOf(slot).word() == session.RowOf(slot).complete_word();
  };
  hooks.publish = [this](ClientId client, SlotId slot, DeviceId device, Bytes offset) {
    Session& session = *sessions_.Find(client);
    uint64_t idle_word = 0;
    if (session.LeaseOf(slot).Publish(ToInt(device), offset, &idle_word))
      session.RowOf(slot).SetStreamComplete(idle_word);
  };
  hooks.grant_early = [this](ClientId client, SlotId slot, DeviceId device, Bytes offset) {
    return GrantEarly(client, slot, device, offset);
  };
  hooks.end_early_grant = [this](ClientId client, SlotId slot, const core::Status& outcome) {
    EndEarlyGrant(*sessions_.Find(client), slot, outcome);
  };
  hooks.send_maps = [this](ClientId client) { SendMaps(*sessions_.Find(client)); };
  return hooks;
}

Session* ClientReplies::SessionOf(const core::TensorOfClient& tensor) const {
  Session* session = sessions_.FindPresent(tensor.client);
  if (session == nullptr) return nullptr;
  return session->RowOf(tensor.slot).tensor == tensor.tensor ? session : nullptr;
}

void ClientReplies::SendMaps(Session& session) {
  MapOrders::Batch batch = session.maps.Send();
  if (batch.descriptors.empty()) return;
  send_memory_(std::make_shared<MemoryForClient>(MemoryForClient{session.id(), std::move(batch)}));
}

bool ClientReplies::PollMaps(Session& session) {
  if (session.faulty || !session.maps.HasWork()) return false;
  std::vector<MapOrders::Ended> ended;
  if (!session.maps.Poll(&ended))
    sessions_.Expel(session, "the map ring of this client is corrupt");
  state_.Spend(session, ended.size());
  state_.store->MapsEnded(session.id(), ended);
  SendMaps(session);
  return true;
}

void ClientReplies::Do(const core::AllocReply& action) {
  Session* session = sessions_.FindPresent(action.client);
  if (session == nullptr) return;
  session->RowOf(action.slot) = {};
  session->RowOf(action.slot).tensor = action.tensor;
  LeaseRow lease = session->LeaseOf(action.slot);
  // Otherwise the client broke the protocol. Its tensor stays in the daemon's tables until it goes.
  if (lease.state() != proto::LeaseState::kRequested) return;
  lease.CompleteAlloc(action.tensor, ToInt(action.device), action.offset);
  recorders_.Answered(*session);
  recorders_.Record(*session, [&](Recorder& recorder) {
    recorder.Created(state_.views().View(action.tensor), state_.now);
  });
}

void ClientReplies::Do(const core::AllocError& action) {
  Session* session = sessions_.FindPresent(action.client);
  if (session == nullptr) return;
  session->RowOf(action.slot) = {};
  charges_.Refund(*session, ClientCharges::kTensorMemory);
  charges_.RememberFailure(*session, action.slot, action.error.message);
  LeaseRow lease = session->LeaseOf(action.slot);
  if (lease.state() == proto::LeaseState::kRequested) lease.FailAlloc(action.error.code);
}

void ClientReplies::Do(const core::FetchReply& action) {
  Session* session = SessionOf(action);
  if (session == nullptr) return;
  LeaseRow lease = session->LeaseOf(action.slot);
  if (lease.state() != proto::LeaseState::kFetching) return;
  session->RowOf(action.slot).ForgetPut();
  lease.CompleteFetch(ToInt(action.device), action.offset, {}, action.recompute);
  recorders_.Answered(*session);
}

bool ClientReplies::GrantEarly(ClientId client, SlotId slot, DeviceId device, Bytes offset) {
  Session* const session = sessions_.FindPresent(client);
  if (session == nullptr) return false;
  LeaseRow lease = session->LeaseOf(slot);
  if (lease.state() != proto::LeaseState::kFetching) return false;
  const auto arrival = session->arrivals.Take();
  if (!arrival) return false;
  session->early_grants[slot] = *arrival;
  session->RowOf(slot).ForgetPut();
  lease.CompleteFetch(ToInt(device), offset, *arrival, /*recompute=*/false);
  recorders_.Answered(*session);
  return true;
}

void ClientReplies::EndEarlyGrant(Session& session, SlotId slot, const core::Status& outcome) {
  const proto::WordValue arrival = session.early_grants.extract(slot).mapped();
  recorders_.Answered(session);
  if (!outcome.ok()) MarkLost(session, slot, outcome.error().message);
  session.segment()->arrivals[arrival.index].store(arrival.value, std::memory_order_release);
  session.arrivals.Release(arrival.index);
}

void ClientReplies::MarkLost(Session& session, SlotId slot, const std::string& why) {
  charges_.RememberFailure(session, slot, why);
  // In this order: a client that begins to wait sees the one or the other.
  session.LeaseOf(slot).MarkLost();
  session.segment()->header.losses.fetch_add(1, std::memory_order_release);
}

void ClientReplies::Do(const core::FetchError& action) {
  const SlotId slot = action.slot;
  Session* session = SessionOf(action);
  if (session == nullptr) return;
  charges_.RememberFailure(*session, slot, action.error.message);
  LeaseRow lease = session->LeaseOf(slot);
  if (lease.state() != proto::LeaseState::kFetching) return;
  if (!action.stays) return lease.FailFetch(action.error.code);
  const uint64_t idle_word = lease.FailFetchInPlace(
      action.error.code, ToInt(core::DeviceOf(action.stays->pool)), action.stays->offset);
  waits_.AwaitPut(*session, slot, action.tensor, idle_word,
                  session->segment()->slots[ToInt(slot)].ticket.load(std::memory_order_acquire));
}

void ClientReplies::Do(const core::Release& action) {
  Session* session = sessions_.FindPresent(action.client);
  if (session == nullptr) return;
  session->RowOf(action.slot) = {};
  charges_.Refund(*session, ClientCharges::kTensorMemory);
  LeaseRow lease = session->LeaseOf(action.slot);
  if (lease.state() == proto::LeaseState::kFreeing) lease.Release();
}

}  // namespace ravenstore::daemon
