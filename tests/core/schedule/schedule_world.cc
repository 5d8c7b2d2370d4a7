#include "tests/core/schedule/schedule_world.h"

#include <utility>

#include "core/books/page_views.h"
#include "core/check.h"

namespace ravenstore::core {

// ---- Clients.

void ScheduleWorld::Join(ClientId id, Bytes pool, TenantId tenant, Bytes addresses) {
  auto client = std::make_unique<Client>(this, id);
  scheduler_.Join({.id = id,
                   .backend = &client->backend,
                   .limits = {.page = kPage,
                              .pages = 0,
                              .pools = {{.capacity = pool, .in_rate = 50e9, .out_rate = 50e9}}},
                   .tenant = tenant,
                   .addresses = addresses});
  clients_[id] = std::move(client);
}

void ScheduleWorld::Leave(ClientId id) {
  scheduler_.Leave(id);
  removed_.push_back(std::move(clients_.at(id)));
  clients_.erase(id);
  leaving_.insert(id);
}

// ---- Calls.

CallResult ScheduleWorld::Called(ClientId id, TensorNumber tensor, CallResult result) {
  Client& client = *clients_.at(id);
  if (result == CallResult::kHeld) client.stream.push_back({tensor, std::nullopt});
  if (result == CallResult::kWaits) client.waiting.push_back(tensor);
  return result;
}

CallResult ScheduleWorld::Create(ClientId id, TensorNumber tensor, Bytes size, StreamId stream) {
  Client& client = *clients_.at(id);
  client.at += std::chrono::microseconds(100);
  const CallResult result =
      scheduler_.Create(id, {.tensor = tensor, .size = size, .at = client.at, .stream = stream});
  if (result == CallResult::kHeld || result == CallResult::kWaits) {
    client.rows.insert(tensor);
    others_place_ |= IsOthers(id, tensor, stream);
  }
  return Called(id, tensor, result);
}

CallResult ScheduleWorld::Get(ClientId id, TensorNumber tensor) {
  Client& client = *clients_.at(id);
  client.at += std::chrono::microseconds(100);
  return Called(id, tensor, scheduler_.Get(id, tensor, client.at));
}

void ScheduleWorld::Put(ClientId id, TensorNumber tensor, bool modifies) {
  Client& client = *clients_.at(id);
  client.at += std::chrono::microseconds(100);
  client.stream.push_back({tensor, scheduler_.Put(id, tensor, modifies, {}, client.at)});
}

std::pair<Bytes, Bytes> ScheduleWorld::RangeOf(ClientId id, TensorNumber tensor) const {
  const PageTensors::Row& row = ExecutorOf(id).tensors()[tensor];
  const Bytes begin = kPage * (row.units.first / 2) + row.offset;
  return {begin, begin + row.size};
}

bool ScheduleWorld::IsOthers(ClientId id, TensorNumber tensor, StreamId stream) const {
  const PageTensors& tensors = ExecutorOf(id).tensors();
  if (tensors[tensor].units.is_slot()) return false;
  const auto [begin, end] = RangeOf(id, tensor);
  for (const Enqueued& before : clients_.at(id)->stream) {
    if (!before.end || !before.end->frees || tensors[before.tensor].units.is_slot()) continue;
    const auto [its_begin, its_end] = RangeOf(id, before.tensor);
    if (its_begin < end && begin < its_end && before.end->place_of != stream) return true;
  }
  return false;
}

void ScheduleWorld::Free(ClientId id, TensorNumber tensor, StreamId stream) {
  Client& client = *clients_.at(id);
  client.at += std::chrono::microseconds(100);
  client.stream.push_back({tensor, scheduler_.Free(id, tensor, client.at, stream)});
}

bool ScheduleWorld::Refuse(ClientId id, TensorNumber tensor) {
  Client& client = *clients_.at(id);
  const auto waits = std::find(client.waiting.begin(), client.waiting.end(), tensor);
  const bool for_room = waits != client.waiting.end();
  if (for_room) client.waiting.erase(waits);
  if (!scheduler_.Refuse(id, tensor)) return false;
  if (for_room && ExecutorOf(id).tensors()[tensor].life == PageTensors::Life::kNone)
    client.rows.erase(tensor);
  HandleRefusals();
  return true;
}

// The client's CPU sees the error before its stream comes to the call.
void ScheduleWorld::HandleRefusals() {
  for (const auto& [id, tensor] : std::exchange(refused_, {})) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) continue;
    Client& client = *found->second;
    auto last = client.stream.rbegin();
    while (last->tensor != tensor) ++last;
    RAVEN_CHECK(!last->end);
    client.stream.erase(std::next(last).base());
    if (ExecutorOf(id).tensors()[tensor].life == PageTensors::Life::kNone)
      client.rows.erase(tensor);
  }
}

bool ScheduleWorld::Waits(ClientId id, TensorNumber tensor) const {
  const auto& waiting = clients_.at(id)->waiting;
  return std::find(waiting.begin(), waiting.end(), tensor) != waiting.end() ||
         ExecutorOf(id).Waits(tensor);
}

// ---- Time.

bool ScheduleWorld::RunStream(ClientId id) {
  Client& client = *clients_.at(id);
  if (client.stream.empty()) return false;
  const Enqueued next = client.stream.front();
  if (!next.end && !ExecutorOf(id).IsResident(next.tensor)) return false;
  client.stream.pop_front();
  if (next.end) {
    scheduler_.EndUse(id, *next.end);
    if (next.end->frees) client.rows.erase(next.tensor);
  } else {
    scheduler_.BeginUse(id, next.tensor);
  }
  return true;
}

void ScheduleWorld::MakePage(ClientId client) {
  ++physical_pages_;
  under_way_.push_back({UnderWay::Kind::kMake, client});
}

std::shared_ptr<PlanWork> ScheduleWorld::MakePlan(DeviceId device, std::shared_ptr<PlanWork> work) {
  if (plans_ == Plans::kImmediate) return PageMaker::MakePlan(device, std::move(work));
  plans_under_way_.push_back(std::move(work));
  return nullptr;
}

void ScheduleWorld::CompletePlan(size_t n) {
  const std::shared_ptr<PlanWork> work = plans_under_way_.at(n);
  plans_under_way_.erase(plans_under_way_.begin() + static_cast<std::ptrdiff_t>(n));
  work->Make();
  scheduler_.PlanMade(work);
}

void ScheduleWorld::Complete(size_t n, bool ok) {
  const UnderWay of = under_way_.at(n);
  under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(n));
  switch (of.kind) {
    case UnderWay::Kind::kMap: scheduler_.Moved(of.client).Mapped(of.number); break;
    case UnderWay::Kind::kUnmap: scheduler_.Moved(of.client).Unmapped(of.number); break;
    case UnderWay::Kind::kIn:
      scheduler_.Arrived(of.client, of.number, PageScheduler::Arrival::kCopiedIn, ok);
      break;
    case UnderWay::Kind::kOut: scheduler_.Moved(of.client).CopiedOut(of.number, ok); break;
    case UnderWay::Kind::kRelease:
      --physical_pages_;
      scheduler_.PageReleased(of.client);
      break;
    case UnderWay::Kind::kMake: scheduler_.PageMade(of.client); break;
  }
  HandleRefusals();
}

void ScheduleWorld::Advance() {
  now_ += std::chrono::microseconds(10);
  for (bool goes_on = true; goes_on;) {
    scheduler_.Advance(now_);
    goes_on = false;
    for (const auto& [id, client] : clients_) {
      if (!scheduler_.TakeWoken(id)) continue;
      while (const auto held = scheduler_.HoldWaiting(id)) {
        RAVEN_CHECK(client->waiting.front() == *held);
        client->waiting.pop_front();
        client->stream.push_back({*held, std::nullopt});
        goes_on = true;
      }
    }
  }
  std::erase_if(leaving_, [this](ClientId id) { return !scheduler_.HasClient(id); });
}

bool ScheduleWorld::Settle() {
  for (uint32_t round = 0; round < kRoundsMost; ++round) {
    Advance();
    bool goes_on = !under_way_.empty();
    for (const auto& entry : clients_) {
      while (RunStream(entry.first)) goes_on = true;
    }
    while (!under_way_.empty()) Complete(0);
    goes_on |= plans_ != Plans::kHeld && !plans_under_way_.empty();
    for (size_t i = plans_ == Plans::kHeld ? 0 : plans_under_way_.size(); i > 0; --i)
      CompletePlan(0);
    if (!goes_on) return true;
  }
  return false;
}

// ---- Checks.

uint32_t ScheduleWorld::InUse(ClientId id) const {
  return PagesInUse(ExecutorOf(id).books());
}

std::string ScheduleWorld::Fault() const {
  if (others_place_) return "a tensor has the place of another stream's";
  if (physical_pages_ > pages_) return "more physical pages than the device has";
  uint32_t owned = 0;
  for (const auto& entry : clients_) {
    CheckBooks(ExecutorOf(entry.first).books());
    owned += ExecutorOf(entry.first).books().memory().pages();
  }
  for (const ClientId id : leaving_) {
    CheckBooks(ExecutorOf(id).books());
    owned += ExecutorOf(id).books().memory().pages();
  }
  const auto making = std::count_if(under_way_.begin(), under_way_.end(), [](const UnderWay& of) {
    return of.kind == UnderWay::Kind::kMake || of.kind == UnderWay::Kind::kRelease;
  });
  if (owned + static_cast<uint32_t>(making) != physical_pages_) return "pages are lost";
  return "";
}

}  // namespace ravenstore::core
