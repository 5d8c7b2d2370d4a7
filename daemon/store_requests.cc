#include "daemon/store_requests.h"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/size_text.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::ClientId;
using core::DeviceId;
using core::Error;
using core::ErrorCode;
using core::SlotId;
using core::TensorNumber;
using core::Tick;
using core::ToInt;

namespace {

// Each unit of the tensor is on the device, or on its way there.
bool IsComing(const core::PageExecutor& executor, TensorNumber tensor) {
  const core::plan::UnitSpan& units = executor.tensors()[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    if (executor.books()[units[i]].life == core::PageState::kAway) return false;
  }
  return units.count > 0;
}

}  // namespace

StoreRequests::StoreRequests(const device::Devices& devices, const TransferLane::Options& transfers,
                             StoreTables* tables, StoreRooms* rooms, const StoreViews* views,
                             Hooks hooks)
    : tables_(*tables),
      rooms_(*rooms),
      views_(*views),
      hooks_(std::move(hooks)),
      moves_(devices, transfers, static_cast<DeviceMoves::Owner*>(this)) {}

void StoreRequests::On(const core::CreateRequested& event) {
  Client& client = *tables_.clients.at(event.client);
  Part& part = hooks_.part(client, event.device);
  client.rows.GrowTo(ToInt(event.slot) + 1);
  Row& row = client.rows[ToInt(event.slot)];
  row = {};
  row.name = event.name;
  row.device = event.device;
  row.size = event.size;
  Add(client, event.slot, {.is_create = true, .deadline = event.deadline, .asked = tables_.now});
  if (event.size == Bytes{})
    return Fail(part, event.slot, {ErrorCode::kInvalidArgument, "a tensor has at least 1 byte"});
  row.id = tables_.ids.Add({client.id, event.slot});
  ++client.tensors;
  tables_.Progressed(part);
  Handle(part, event.slot, Create(part.pages.get(), ToInt(event.slot), event.size, event.stream),
         event.fail_fast || event.fail_stuck);
}

void StoreRequests::On(const core::FetchRequested& event) {
  const auto [client, slot] = tables_.Find(event.tensor);
  if (client == nullptr) return;
  Row& row = client->rows[ToInt(slot)];
  if (row.request || row.is_freed()) return;
  Part& part = client->parts.at(row.device);
  const bool is_late =
      row.device == event.device && IsComing(tables_.ExecutorOf(part), ToInt(slot));
  for (core::PlannerStats* stats : {&tables_.stats, &client->stats})
    ++(is_late ? stats->late_hits : stats->misses);
  Add(*client, slot, {.awaits = event.awaits, .deadline = event.deadline, .asked = tables_.now});
  if (row.device != event.device && !row.lost) return BeginMove(*client, slot, event.device);
  tables_.Progressed(part);
  Handle(part, slot, Get(part.pages.get(), ToInt(slot)), event.fail_stuck);
}

void StoreRequests::BeginMove(Client& client, SlotId slot, DeviceId device) {
  const Row& row = client.rows[ToInt(slot)];
  Part& from = client.parts.at(row.device);
  if (row.is_kept) {
    return Fail(from, slot,
                {ErrorCode::kWrongState,
                 "it is kept in place on device " + std::to_string(ToInt(row.device))});
  }
  Part& to = hooks_.part(client, device);
  moves_.Begin(client.id, ToInt(slot), {&tables_.SchedulerOf(from), from.pages.get()},
               {&tables_.SchedulerOf(to), to.pages.get()}, row.ends.empty());
}

void StoreRequests::Handle(Part& part, SlotId slot, core::CallResult result, bool fail_fast) {
  if (result == core::CallResult::kHeld) {
    if (tables_.ExecutorOf(part).IsResident(ToInt(slot))) Answer(part, slot);
    return;
  }
  if (result == core::CallResult::kWaits) {
    // Its client's part of the device is that of the last division, which did not know of it: a
    // client that is new has none.
    part.client->rows[ToInt(slot)].request->fails_fast = fail_fast;
    if (fail_fast) fails_fast_.emplace_back(part.client->id, slot);
    return;
  }
  Fail(part, slot, ErrorOf(part.pages.get(), ToInt(slot), result));
}

void StoreRequests::Held(Part& part, SlotId slot) {
  const Row& row = part.client->rows[ToInt(slot)];
  if (row.request) row.request->fails_fast = false;
  Handle(part, slot, core::CallResult::kHeld, false);
}

void StoreRequests::RefuseFast(core::DeviceId device) {
  for (const auto& [id, slot] : std::exchange(fails_fast_, {})) {
    const auto client = tables_.clients.find(id);
    if (client == tables_.clients.end() || client->second->departed) continue;
    const Row& row = client->second->rows[ToInt(slot)];
    if (!row.request || !row.request->fails_fast) continue;
    if (row.device != device) {
      fails_fast_.emplace_back(id, slot);
      continue;
    }
    Part& part = client->second->parts.at(device);
    Error error = ErrorOf(part.pages.get(), ToInt(slot), core::CallResult::kWaits);
    tables_.SchedulerOf(part).Refuse(id, ToInt(slot));
    tables_.Progressed(part);
    Fail(part, slot, std::move(error));
  }
}

Error StoreRequests::ErrorOf(ClientPages* pages, TensorNumber tensor,
                             core::CallResult result) const {
  const Part& part = *tables_.parts.at(pages);
  const Row& row = part.client->rows[tensor];
  if (result == core::CallResult::kLost) {
    return {ErrorCode::kLost, row.unneeded ? "its client said that it will not be read again"
                                           : views_.NameOf(row.lost_by) + " lost its bytes"};
  }
  if (result == core::CallResult::kNoAddresses) {
    return {ErrorCode::kOutOfMemory,
            "no place among the " + core::SizeText(tables_.On(pages->device()).addresses) +
                " of addresses that a client's tensors have on device " +
                std::to_string(ToInt(pages->device())) + "; free some of its tensors"};
  }
  if (result == core::CallResult::kWaits && pages->failure()) return *pages->failure();
  std::string why = views_.WhyNoRoom(part, row.size);
  if (result == core::CallResult::kNoPlace) {
    why += "; the pools for copies have no room for more tensors";
  }
  return {ErrorCode::kOutOfMemory, std::move(why)};
}

void StoreRequests::Add(Client& client, SlotId slot, const Request& request) {
  client.rows[ToInt(slot)].request = std::make_unique<Request>(request);
  tables_.deadlines.insert({request.deadline, client.id, slot});
  ++client.stats.waiting;
  ++tables_.stats.waiting;
}

StoreRequests::Request StoreRequests::Take(Part& part, SlotId slot) {
  const Request request = *std::exchange(part.client->rows[ToInt(slot)].request, nullptr);
  tables_.deadlines.erase({request.deadline, part.client->id, slot});
  --part.client->stats.waiting;
  --tables_.stats.waiting;
  return request;
}

StoreRequests::Request StoreRequests::TakeAnswered(Part& part, SlotId slot) {
  const Request request = Take(part, slot);
  part.client->stats.waited += tables_.now - request.asked;
  tables_.stats.waited += tables_.now - request.asked;
  return request;
}

void StoreRequests::Fail(Part& part, SlotId slot, Error error) {
  Row& row = part.client->rows[ToInt(slot)];
  if (!Take(part, slot).is_create) {
    const Part& of = part.client->parts.at(row.device);
    core::FetchError failed;
    failed.tensor = row.id;
    failed.client = part.client->id;
    failed.slot = slot;
    failed.error = std::move(error);
    if (!row.away && row.lives)
      failed.stays = core::Place{core::PoolOf(row.device), of.pages->AddressOf(ToInt(slot))};
    hooks_.answer(std::move(failed));
    return;
  }
  hooks_.answer(core::AllocError{part.client->id, slot, std::move(error)});
  EndRow(part, slot);
}

void StoreRequests::EndRow(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  if (row.id != core::kNoTensor) {
    tables_.ids.Remove(row.id);
    --part.client->tensors;
  }
  row = {};
}

// Its pages are there.
void StoreRequests::Answer(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  if (!row.request) return;  // a use that the client did not have to ask for
  if (moves_.Moves(part.client->id, ToInt(slot))) {
    // One that was discarded stays so on its device.
    if (tables_.ExecutorOf(part).tensors()[ToInt(slot)].lives()) part.client->SetAway(slot, false);
    return moves_.Granted(part.client->id, ToInt(slot), part.pages.get());
  }
  const bool begins = !tables_.ExecutorOf(part).tensors()[ToInt(slot)].lives();
  tables_.SchedulerOf(part).BeginUse(part.client->id, ToInt(slot));
  tables_.Progressed(part);
  if (row.request->is_create) {
    TakeAnswered(part, slot);
    row.lives = true;
    part.client->live += row.size;
    ++part.client->stats.creates;
    ++tables_.stats.creates;
    hooks_.answer(core::AllocReply{part.client->id, slot, row.id, row.device,
                                   part.pages->AddressOf(ToInt(slot))});
    return;
  }
  ++row.past.gets;
  AnswerFetch(part, slot, begins);
}

void StoreRequests::AnswerFetch(Part& part, SlotId slot, bool recompute) {
  Row& row = part.client->rows[ToInt(slot)];
  TakeAnswered(part, slot);
  part.client->SetAway(slot, false);
  core::FetchReply reply;
  reply.tensor = row.id;
  reply.client = part.client->id;
  reply.slot = slot;
  reply.device = row.device;
  reply.offset = part.pages->AddressOf(ToInt(slot));
  reply.recompute = recompute;
  part.client->stats.recomputes += recompute ? 1 : 0;
  tables_.stats.recomputes += recompute ? 1 : 0;
  hooks_.answer(reply);
}

void StoreRequests::On(const core::TimePassed& /*event*/) {
  while (!tables_.deadlines.empty() && std::get<Tick>(*tables_.deadlines.begin()) <= tables_.now) {
    const auto [deadline, id, slot] = *tables_.deadlines.begin();
    Expire(*tables_.clients.at(id), slot);
  }
}

void StoreRequests::Expire(Client& client, SlotId slot) {
  Row& row = client.rows[ToInt(slot)];
  if (moves_.Moves(client.id, ToInt(slot))) {
    tables_.deadlines.erase({row.request->deadline, client.id, slot});
    row.request->deadline = core::kNever;
    return moves_.Expire(client.id, ToInt(slot));
  }
  Part& part = client.parts.at(row.device);
  Error error = ErrorOf(part.pages.get(), ToInt(slot), core::CallResult::kWaits);
  tables_.SchedulerOf(part).Refuse(client.id, ToInt(slot));
  std::erase(part.refused, slot);
  std::erase(part.granted, slot);
  tables_.Progressed(part);
  Fail(part, slot, std::move(error));
}

core::CallResult StoreRequests::Create(ClientPages* pages, TensorNumber tensor, Bytes size,
                                       core::StreamId stream) {
  const Part& part = tables_.PartOf(pages);
  const ClientId client = part.client->id;
  rooms_.BeginCreate(part);
  const core::CallResult result = tables_.SchedulerOf(part).Create(
      client, {.tensor = tensor, .size = size, .at = ClockOf(client), .stream = stream});
  rooms_.UpdateRoom(part);
  return result;
}

core::CallResult StoreRequests::Get(ClientPages* pages, TensorNumber tensor) {
  const Part& part = tables_.PartOf(pages);
  const ClientId client = part.client->id;
  return part.client->rows[tensor].lost
             ? core::CallResult::kLost
             : tables_.SchedulerOf(part).Get(client, tensor, ClockOf(client));
}

void StoreRequests::Moved(ClientId id, TensorNumber tensor, ClientPages* to, bool recompute) {
  Part& part = tables_.PartOf(to);
  Row& row = part.client->rows[tensor];
  row.device = to->device();
  for (core::PlannerStats* stats : {&tables_.stats, &tables_.clients.at(id)->stats}) {
    if (recompute) break;
    stats->in += row.size;
  }
  AnswerFetch(part, SlotOf(tensor), recompute);
}

void StoreRequests::NotMoved(ClientId id, TensorNumber tensor, Error error) {
  Client& client = *tables_.clients.at(id);
  for (auto& [device, part] : client.parts) {
    std::erase(part.refused, SlotOf(tensor));
    std::erase(part.granted, SlotOf(tensor));
  }
  Fail(client.parts.at(client.rows[tensor].device), SlotOf(tensor), std::move(error));
}

core::Duration StoreRequests::ClockOf(ClientId id) const {
  const Client& client = *tables_.clients.at(id);
  return tables_.now - client.attached - client.stats.waited;
}

void StoreRequests::Refused(Part& part, SlotId slot) {
  Error error{ErrorCode::kDevice, "a copy of its bytes failed"};
  const Row& row = part.client->rows[ToInt(slot)];
  if (row.lost) error = ErrorOf(part.pages.get(), ToInt(slot), core::CallResult::kLost);
  if (row.request && row.request->is_create) {
    error = {ErrorCode::kOutOfMemory,
             "its place is in a page with other tensors, and a copy of their bytes failed; try "
             "again"};
  }
  if (moves_.Moves(part.client->id, ToInt(slot))) {
    moves_.Refused(part.client->id, ToInt(slot), std::move(error));
  } else if (row.request) {
    Fail(part, slot, std::move(error));
  }
}

bool StoreRequests::CanGrantEarly(const Part& part, SlotId slot) const {
  const Row& row = part.client->rows[ToInt(slot)];
  return row.request && !row.request->awaits && !moves_.Moves(part.client->id, ToInt(slot));
}

void StoreRequests::NoteGrantedEarly(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  row.is_granted_early = true;
  ++row.past.gets;
  TakeAnswered(part, slot);
  part.client->SetAway(slot, false);
}

void StoreRequests::Forget(Client* client) {
  moves_.Forget(client->id);
  if (client->stats.waiting == 0) return;
  std::erase_if(tables_.deadlines,
                [&](const auto& of) { return std::get<ClientId>(of) == client->id; });
  tables_.stats.waiting -= std::exchange(client->stats.waiting, 0);
}

Tick StoreRequests::NextWake() const {
  return tables_.deadlines.empty() ? core::kNever : std::get<Tick>(*tables_.deadlines.begin());
}

}  // namespace ravenstore::daemon
