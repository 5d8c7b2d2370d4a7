#include "daemon/sealed_clients.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace ravenstore::daemon {

using core::ClientId;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::SlotId;
using core::TensorId;
using core::ToInt;
using proto::LeaseState;

Result<std::vector<SealedClients::Tensor>> SealedClients::Seal(ClientId client) {
  Session* const session = sessions_.FindPresent(client);
  if (session == nullptr) return Error{ErrorCode::kNotFound, "the client is gone"};
  if (!session->attachment().fixed_addresses) {
    return Error{ErrorCode::kWrongState,
                 "a set's tensors have fixed addresses: connect its store with those"};
  }
  if (session->faulty || session->HasRequests())
    return Error{ErrorCode::kWrongState, "a call of this client is under way"};
  // They may have the puts, and that the streams have come there.
  logs_.ReadOf(client);
  waits_.Poll();
  actions_.Execute();
  Sealed sealed;
  std::vector<Tensor> tensors;
  for (uint32_t i = 0; i < session->rows(); ++i) {
    const SlotId slot{i};
    if (!session->IsTaken(slot)) continue;
    const TensorId tensor = session->TensorAt(slot);
    const uint64_t complete = session->RowOf(slot).complete_word();
    const bool is_idle = complete != 0 && session->LeaseOf(slot).word() == complete;
    const bool is_away = session->LeaseOf(slot).state() == LeaseState::kAway;
    if (tensor == core::kNoTensor || (!is_idle && !is_away)) {
      return Error{ErrorCode::kWrongState,
                   "a tensor of this client is in use: put it first, and wait for its stream"};
    }
    const core::TensorView view = state_.views().View(tensor);
    const StoreViews::Pages pages = state_.views().PagesOf(tensor);
    const uint64_t end = pages.offset.count() + view.size.count();
    sealed.slots.push_back(slot);
    tensors.push_back(
        {.device = view.device,
         .bytes = view.size,
         .page = pages.page,
         .offset = pages.offset,
         .pages = static_cast<uint32_t>((end + pages.page.count() - 1) / pages.page.count())});
  }
  if (tensors.empty()) return Error{ErrorCode::kWrongState, "this client has no tensors"};
  session->sealed = true;
  session->maps.ExecuteHere();
  sealed_[client] = std::move(sealed);
  return tensors;
}

void SealedClients::Use(ClientId client, core::Tick deadline, Used used) {
  Sealed& sealed = sealed_.at(client);
  sealed.used = std::move(used);
  Session& session = SessionOf(client);
  for (const SlotId slot : sealed.slots) Get(session, slot, deadline);
  Answer(client, sealed);
}

void SealedClients::Get(Session& session, SlotId slot, core::Tick deadline) {
  LeaseRow lease = session.LeaseOf(slot);
  const TensorId tensor = session.TensorAt(slot);
  if (lease.state() == LeaseState::kIdle) {
    lease.Get();
    session.RowOf(slot).ForgetPut();
    return actions_.Apply(core::GetSeen{tensor});
  }
  if (lease.state() != LeaseState::kAway) return;
  lease.Fetch();
  actions_.Apply(core::FetchRequested{.tensor = tensor,
                                      .device = state_.views().View(tensor).device,
                                      .deadline = deadline,
                                      .awaits = true});
}

void SealedClients::Put(Session& session, SlotId slot) {
  LeaseRow lease = session.LeaseOf(slot);
  if (lease.state() != LeaseState::kInUse) return;
  lease.Put();
  logs_.HandlePut(session, slot);
  actions_.Execute();
}

void SealedClients::EndUse(ClientId client) {
  Session& session = SessionOf(client);
  for (const SlotId slot : sealed_.at(client).slots) Put(session, slot);
}

void SealedClients::Answer(ClientId client, Sealed& sealed) {
  Session& session = SessionOf(client);
  const auto count = [&](LeaseState state) {
    return static_cast<size_t>(
        std::count_if(sealed.slots.begin(), sealed.slots.end(),
                      [&](SlotId slot) { return session.LeaseOf(slot).state() == state; }));
  };
  if (count(LeaseState::kFetching) > 0) return;
  const Used used = std::exchange(sealed.used, {});
  if (count(LeaseState::kInUse) == sealed.slots.size()) return used(core::Ok());
  const auto failed = std::find_if(sealed.slots.begin(), sealed.slots.end(), [&](SlotId slot) {
    return session.LeaseOf(slot).state() != LeaseState::kInUse;
  });
  const uint32_t code = session.segment()->slots[ToInt(*failed)].error.load();
  const bool is_lost = session.LeaseOf(*failed).state() == LeaseState::kLost;
  const Error why{is_lost     ? ErrorCode::kLost
                  : code == 0 ? ErrorCode::kCorrupt
                              : static_cast<ErrorCode>(code),
                  session.Failure(*failed)};
  for (const SlotId slot : sealed.slots) Put(session, slot);
  used(why);
}

void SealedClients::Export(ClientId client, uint32_t tensor, uint32_t first, uint32_t most,
                           Exported exported) {
  const auto fail = [&](const Error& why) {
    workers_.Run(kNoUser, [exported = std::move(exported), why] { exported(why); });
  };
  const auto found = sealed_.find(client);
  if (found == sealed_.end() || tensor >= found->second.slots.size())
    return fail({ErrorCode::kNotFound, "the set has no such tensor"});
  Session& session = SessionOf(client);
  const TensorId id = session.TensorAt(found->second.slots[tensor]);
  const core::DeviceId device = state_.views().View(id).device;
  const StoreViews::Pages pages = state_.views().PagesOf(id);
  if (pages.at.empty()) return fail({ErrorCode::kWrongState, "the set is not in use"});
  if (first >= pages.at.size()) return fail({ErrorCode::kNotFound, "the tensor has no such page"});
  const size_t end = std::min<size_t>(pages.at.size(), first + uint64_t{most});
  workers_.Run(
      session.attachment().tenant,
      [attachment = session.shared(), device, exported = std::move(exported),
       at = std::vector(pages.at.begin() + first, pages.at.begin() + static_cast<ptrdiff_t>(end))] {
        std::vector<ipc::UniqueFd> descriptors;
        for (const core::Bytes offset : at) {
          auto descriptor = attachment->arenas[ToInt(device)]->Export(offset);
          if (!descriptor.ok()) return exported(descriptor.error());
          descriptors.push_back(*std::move(descriptor));
        }
        exported(std::move(descriptors));
      });
}

void SealedClients::Forget(ClientId client) {
  auto left = sealed_.extract(client);
  if (left && left.mapped().used)
    left.mapped().used(Error{ErrorCode::kNotFound, "the set is gone"});
}

bool SealedClients::Poll() {
  bool busy = false;
  for (auto& [client, sealed] : sealed_) {
    busy |= replies_.PollMaps(SessionOf(client));
    if (sealed.used) Answer(client, sealed);
  }
  return busy;
}

}  // namespace ravenstore::daemon
