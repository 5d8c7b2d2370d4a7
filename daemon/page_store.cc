#include "daemon/page_store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "core/books/page_views.h"
#include "core/check.h"
#include "core/decide/page_admission.h"
#include "core/decide/page_shares.h"
#include "core/plan/move_chooser.h"
#include "core/plan/page_size.h"
#include "core/size_text.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::ClientId;
using core::DeviceId;
using core::Error;
using core::ErrorCode;
using core::SlotId;
using core::TensorId;
using core::TensorNumber;
using core::Tick;
using core::ToInt;
using core::decide::Admission;

namespace {

// Of clients' shares, whose pages have different sizes.
constexpr Bytes kUnit = core::MiB(2);
constexpr uint64_t kPagesLeast = 8;

constexpr uint32_t UnitsIn(Bytes bytes) {
  return static_cast<uint32_t>(std::min<uint64_t>(bytes.count() / kUnit.count(), UINT32_MAX));
}

constexpr SlotId SlotOf(TensorNumber tensor) {
  return SlotId{tensor};
}

}  // namespace

PageStore::PageStore(Options options, device::Devices devices, AwayMemory* host,
                     WorkerPool* workers, Mailbox* mailbox, Hooks hooks)
    : options_(std::move(options)),
      devices_(std::move(devices)),
      workers_(workers),
      mailbox_(mailbox),
      hooks_(std::move(hooks)),
      host_({.name = "the host pool",
             .capacity = options_.host_capacity,
             .step = options_.host_step,
             .ahead = options_.host_ahead,
             .transfers = options_.transfers},
            host, workers, mailbox),
      limits_(options_.device_capacity) {}

PageStore::~PageStore() = default;

core::Status PageStore::Open() {
  for (uint16_t i = 0; i < devices_.size(); ++i)
    RAVEN_RETURN_IF_ERROR(host_.AddDevice(DeviceId{i}, devices_[i]->info().uuid));
  return core::Ok();
}

void PageStore::Apply(const core::Event& event, Tick now, core::Plan* plan) {
  now_ = now;
  std::visit([this](const auto& one) { On(one); }, event);
  RunProgressed();
  std::move(replies_.begin(), replies_.end(), std::back_inserter(*plan));
  replies_.clear();
}

bool PageStore::Poll(Tick now, core::Plan* plan) {
  now_ = now;
  const bool busy = host_.Poll(now);
  for (const auto& [pages, part] : parts_) {
    if (now < pages->NextWake()) continue;
    pages->Poll(now);
    Progressed(pages);
  }
  const bool progressed = !progressed_.empty();
  if (share_due_) ShareOut();
  Apply(core::TimePassed{}, now, plan);
  return busy || progressed;
}

// ---- Clients and their shares.

void PageStore::On(const core::TenantLimits& event) {
  tenants_[event.tenant] = event.budgets;
  share_due_ = true;
}

void PageStore::On(const core::ClientAttached& event) {
  auto client = std::make_unique<Client>();
  client->id = event.client;
  client->tenant = event.tenant;
  client->budgets = event.budgets;
  clients_[event.client] = std::move(client);
}

void PageStore::On(const core::ClientLimits& event) {
  clients_.at(event.client)->budgets = event.budgets;
  share_due_ = true;
}

void PageStore::On(const core::DeviceLimit& event) {
  const size_t device = ToInt(event.device);
  limits_[device] = std::min(event.capacity, options_.device_capacity[device]);
  share_due_ = true;
}

void PageStore::On(const core::ClientGone& event) {
  Client& client = *clients_.at(event.client);
  client.gone = true;
  for (auto& [device, part] : client.parts) {
    part.waiting.clear();
    part.pages->Retire();
  }
  for (uint32_t slot = 0; slot < client.rows.size(); ++slot) {
    const Row& row = client.rows[slot];
    if (row.request) deadlines_.erase({row.request->deadline, client.id, SlotId{slot}});
    by_id_.erase(row.id);
  }
  stats_.waiting -= std::exchange(client.stats.waiting, 0);
  share_due_ = true;
}

bool PageStore::IsQuiet(ClientId client) const {
  const Client& of = *clients_.at(client);
  return std::all_of(of.parts.begin(), of.parts.end(),
                     [](const auto& part) { return part.second.pages->IsQuiet(); });
}

void PageStore::Forget(ClientId client) {
  for (const auto& [device, part] : clients_.at(client)->parts) parts_.erase(part.pages.get());
  clients_.erase(client);
  share_due_ = true;
}

void PageStore::On(const core::Trimmed& event) {
  clients_.at(event.client)->trims = true;
  share_due_ = true;
}

// Of a budget of few pages a page is a large part.
Bytes PageStore::PageOf(const Client& client, DeviceId device) const {
  if (options_.page > Bytes{}) return options_.page;
  const Bytes budget = MostOf(client, device);
  Bytes page = core::plan::PageSizeFor(budget, false);
  while (page > kUnit && page * kPagesLeast > budget) page = Bytes(page.count() / 2);
  return page;
}

Bytes PageStore::MostOf(const Client& client, DeviceId device) const {
  const auto tenant = tenants_.find(client.tenant);
  const Bytes of_tenant = tenant == tenants_.end() ? Bytes(UINT64_MAX) : tenant->second.device;
  return std::min({client.budgets.device, of_tenant, limits_[ToInt(device)]});
}

PageStore::Part& PageStore::PartOf(Client& client, DeviceId device) {
  Part& part = client.parts[device];
  if (part.pages != nullptr) return part;
  const auto [attachment, maps] = hooks_.attachment(client.id);
  const core::LinkModel& link = options_.links[ToInt(device)];
  const Bytes page = PageOf(client, device);
  ClientPages::Options options;
  options.device = device;
  options.arena = options_.arena[ToInt(device)];
  options.books.limits = {
      .page = page,
      .pages = 0,
      .pools = {{.capacity = std::min(client.budgets.host, options_.host_capacity),
                 .in_rate = link.up_bytes_per_second,
                 .out_rate = link.down_bytes_per_second,
                 .per_copy = link.latency}}};
  options.books.coming_most = std::max(options_.coming_most, page);
  part.client = &client;
  part.places = std::make_unique<core::plan::Places>(
      core::plan::SmallTensorRule{.page = page, .largest_slot = {}});
  part.pages = std::make_unique<ClientPages>(options, attachment, devices_[ToInt(device)],
                                             std::vector<PagePool*>{&host_}, maps, workers_,
                                             mailbox_, static_cast<ClientPages::Owner*>(this));
  parts_[part.pages.get()] = &part;
  // Until the next pass, what no other client may hold.
  uint32_t left = UnitsIn(limits_[ToInt(device)]);
  for (const auto& [id, other] : clients_) {
    const auto found = other->parts.find(device);
    if (found == other->parts.end() || found->second.pages == nullptr) continue;
    const ClientPages& pages = *found->second.pages;
    const uint32_t held = std::max(pages.executor().books().view().limits.pages, pages.made());
    left -= std::min(left, UnitsIn(pages.page()) * held);
  }
  const uint32_t share = std::min(left, UnitsIn(MostOf(client, device))) / UnitsIn(page);
  part.pages->executor().SetShare(share);
  share_due_ = true;
  return part;
}

// Memory that calls hold first, then what tensors live in, each within its client's budget.
void PageStore::ShareOut() {
  share_due_ = false;
  for (uint16_t i = 0; i < devices_.size(); ++i) ShareOut(DeviceId{i});
}

void PageStore::ShareOut(DeviceId device) {
  std::vector<Part*> parts;
  std::vector<core::decide::PageDemand> demands;  // in kUnit
  uint32_t left = UnitsIn(limits_[ToInt(device)]);
  for (const auto& [id, client] : clients_) {
    const auto found = client->parts.find(device);
    if (found == client->parts.end()) continue;
    const ClientPages& pages = *found->second.pages;
    const uint32_t units = UnitsIn(pages.page());
    if (client->gone) {
      left -= std::min(left, units * pages.made());
      continue;
    }
    parts.push_back(&found->second);
    demands.push_back(DemandOf(found->second));
  }
  auto shares = core::decide::SharePages(demands, left);
  for (size_t k = 0; k < parts.size(); ++k) {
    Part& part = *parts[k];
    const uint32_t units = UnitsIn(part.pages->page());
    const Bytes most = MostOf(*part.client, device);
    // Alone on the device a client may have all of its budget.
    if (parts.size() == 1) shares[k] = std::min(left, UnitsIn(most));
    if (part.client->trims) shares[k] = std::min(shares[k], demands[k].alive);
    const uint32_t share = shares[k] / units;
    if (share == part.pages->executor().books().view().limits.pages) continue;
    part.pages->executor().SetShare(share);
    Progressed(part.pages.get());
  }
}

core::decide::PageDemand PageStore::DemandOf(const Part& part) const {
  const core::PageBooks& books = part.pages->executor().books();
  const uint32_t units = UnitsIn(part.pages->page());
  const uint32_t most = UnitsIn(MostOf(*part.client, part.pages->device())) / units;
  uint32_t waits_for = 0;
  if (!part.waiting.empty()) {
    const auto& span = part.pages->executor().tensors()[ToInt(part.waiting.front())].units;
    waits_for = core::CallIn(books, span).in_use;
  }
  const auto at_most = [&](uint32_t pages) { return units * std::min(most, pages); };
  return {.in_use = at_most(core::PagesInUse(books)),
          .waits_for = at_most(waits_for),
          .alive = at_most(books.totals().occupied().pages()),
          .held = at_most(books.memory().pages())};
}

// ---- Requests.

PageStore::Row& PageStore::RowOf(Client& client, SlotId slot) {
  if (ToInt(slot) >= client.rows.size()) client.rows.resize(ToInt(slot) + 1);
  return client.rows[ToInt(slot)];
}

PageStore::Client* PageStore::Find(TensorId tensor, SlotId* slot) {
  const auto found = by_id_.find(tensor);
  if (found == by_id_.end()) return nullptr;
  *slot = found->second.second;
  return clients_.at(found->second.first).get();
}

void PageStore::On(const core::CreateRequested& event) {
  Client& client = *clients_.at(event.client);
  Part& part = PartOf(client, event.device);
  Row& row = RowOf(client, event.slot);
  if (std::exchange(client.trims, false)) ShareOut(event.device);
  row = {};
  row.name = event.name;
  row.device = event.device;
  row.size = event.size;
  AddRequest(client, event.slot,
             {.is_create = true,
              .fail_fast = event.fail_fast || event.fail_stuck,
              .deadline = event.deadline,
              .asked = now_});
  if (event.size == Bytes{})
    return Fail(part, event.slot, {ErrorCode::kInvalidArgument, "a tensor has at least 1 byte"});
  if (event.size > Bytes(options_.arena[ToInt(event.device)].count() / 2)) {
    return Fail(
        part, event.slot,
        {ErrorCode::kOutOfMemory, core::SizeText(event.size) +
                                      " are more than all addresses of a client on device " +
                                      std::to_string(ToInt(event.device))});
  }
  row.place = part.places->Allocate(event.size);
  row.id = TensorId{++last_id_};
  by_id_[row.id] = {client.id, event.slot};
  const auto units = part.places->UnitsOf(row.place, event.size);
  const Bytes page = part.pages->page();
  part.pages->SetOffset(ToInt(event.slot),
                        units.is_slot() ? Bytes{} : Bytes(row.place.at % page.count()));
  part.pages->executor().Place(ToInt(event.slot), units,
                               part.places->BytesIn(row.place, event.size, 0), event.size);
  ++client.tensors;
  Wait(part, event.slot);
}

void PageStore::On(const core::FetchRequested& event) {
  SlotId slot{};
  Client* client = Find(event.tensor, &slot);
  if (client == nullptr || client->rows[ToInt(slot)].request) return;
  Row& row = client->rows[ToInt(slot)];
  Part& part = client->parts.at(row.device);
  ++client->stats.misses;
  ++stats_.misses;
  AddRequest(*client, slot,
             {.fail_fast = event.fail_stuck, .deadline = event.deadline, .asked = now_});
  if (row.lost)
    return Fail(part, slot, {ErrorCode::kLost, "its client said that it will not be read again"});
  if (row.device != event.device) {
    return Fail(part, slot,
                {ErrorCode::kUnsupported,
                 "the tensor lives on device " + std::to_string(ToInt(row.device))});
  }
  Wait(part, slot);
}

void PageStore::AddRequest(Client& client, SlotId slot, const Request& request) {
  client.rows[ToInt(slot)].request = request;
  deadlines_.insert({request.deadline, client.id, slot});
  ++client.stats.waiting;
  ++stats_.waiting;
}

PageStore::Request PageStore::TakeRequest(Part& part, SlotId slot) {
  const Request request = *std::exchange(part.client->rows[ToInt(slot)].request, std::nullopt);
  deadlines_.erase({request.deadline, part.client->id, slot});
  --part.client->stats.waiting;
  --stats_.waiting;
  return request;
}

void PageStore::SetAway(Part& part, SlotId slot, bool away) {
  Row& row = part.client->rows[ToInt(slot)];
  if (std::exchange(row.away, away) == away) return;
  if (away) {
    part.client->away += row.size;
  } else {
    part.client->away -= row.size;
  }
}

void PageStore::Wait(Part& part, SlotId slot) {
  part.waiting.push_back(slot);
  ServeWaiting(part);
}

// Those behind one that waits do not go before it: it could wait for ever.
void PageStore::ServeWaiting(Part& part) {
  while (!part.waiting.empty() && TryHold(part, part.waiting.front())) part.waiting.pop_front();
}

bool PageStore::TryHold(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  core::PageExecutor& executor = part.pages->executor();
  const TensorNumber tensor = ToInt(slot);
  const auto& units = executor.tensors()[tensor].units;
  const Bytes end =
      row.request->is_create && !units.is_slot() ? Bytes(row.place.at) + row.size : Bytes{};
  const bool has_place =
      !row.request->is_create ||
      (executor.CanCreate(units) && end.count() <= options_.arena[ToInt(row.device)].count() / 2);
  const Admission admission = has_place ? executor.Admit(tensor) : Admission::kLater;
  if (admission == Admission::kNow) {
    row.request->held = true;
    row.pinned = true;
    if (executor.Pin(tensor)) part.granted.push_back(slot);
    Progressed(part.pages.get());
    return true;
  }
  // Of several clients each may have more when others have less.
  const bool never = admission == Admission::kTooLarge && parts_.size() == 1;
  if (!never && !row.request->fail_fast) return false;
  Fail(part, slot, {ErrorCode::kOutOfMemory, WhyNoRoom(part, row)});
  return true;
}

std::string PageStore::WhyNoRoom(const Part& part, const Row& row) const {
  const core::PageBooks& books = part.pages->executor().books();
  const Bytes page = part.pages->page();
  return "device " + std::to_string(ToInt(row.device)) + ": no room for " +
         core::SizeText(row.size) + " within client " + std::to_string(ToInt(part.client->id)) +
         "'s share of " + core::SizeText(page * books.view().limits.pages) + " (pages of " +
         core::SizeText(page) + "); holders: client " + std::to_string(ToInt(part.client->id)) +
         " holds " + core::SizeText(page * core::PagesInUse(books)) +
         " in use; put or free tensors, raise the budgets, or wait longer";
}

void PageStore::Fail(Part& part, SlotId slot, Error error) {
  Row& row = part.client->rows[ToInt(slot)];
  if (!TakeRequest(part, slot).is_create) {
    core::FetchError failed;
    failed.tensor = row.id;
    failed.client = part.client->id;
    failed.slot = slot;
    failed.error = std::move(error);
    if (!row.away && row.lives)
      failed.stays = core::Place{core::PoolOf(row.device), part.pages->AddressOf(ToInt(slot))};
    replies_.push_back(std::move(failed));
    return;
  }
  replies_.push_back(core::AllocError{part.client->id, slot, std::move(error)});
  EndRow(part, slot);
}

// Its place is free.
void PageStore::EndRow(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  if (row.id != core::kNoTensor) {
    part.pages->executor().Remove(ToInt(slot));
    part.places->Free(row.place, row.size);
    by_id_.erase(row.id);
    --part.client->tensors;
  }
  row = {};
}

// Its pages are there.
void PageStore::Answer(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  if (!row.request) return;  // a use that the client did not have to ask for
  const Request request = TakeRequest(part, slot);
  part.client->stats.waited += now_ - request.asked;
  stats_.waited += now_ - request.asked;
  const Bytes address = part.pages->AddressOf(ToInt(slot));
  if (request.is_create) {
    part.pages->executor().Begin(ToInt(slot));
    row.lives = true;
    part.client->live += row.size;
    ++part.client->stats.creates;
    ++stats_.creates;
    replies_.push_back(core::AllocReply{part.client->id, slot, row.id, row.device, address});
    return;
  }
  SetAway(part, slot, false);
  core::FetchReply reply;
  reply.tensor = row.id;
  reply.client = part.client->id;
  reply.slot = slot;
  reply.device = row.device;
  reply.offset = address;
  reply.arriving = false;
  replies_.push_back(reply);
}

// ---- What clients did.

void PageStore::On(const core::GetSeen& event) {
  SlotId slot{};
  Client* client = Find(event.tensor, &slot);
  if (client == nullptr) return;
  ++client->stats.hits;
  ++stats_.hits;
  Row& row = client->rows[ToInt(slot)];
  if (row.pinned || !row.lives) return;
  Part& part = client->parts.at(row.device);
  row.pinned = true;
  if (!part.pages->executor().Pin(ToInt(slot)))
    spdlog::error("client {}: slot {} is in use and not resident", ToInt(client->id), ToInt(slot));
}

void PageStore::On(const core::PutSeen& event) {
  SlotId slot{};
  Client* client = Find(event.tensor, &slot);
  if (client == nullptr || !client->rows[ToInt(slot)].lives) return;
  Row& row = client->rows[ToInt(slot)];
  Part& part = client->parts.at(row.device);
  core::PageExecutor& executor = part.pages->executor();
  // A use that was neither read nor ended yet.
  if (!row.pinned) executor.Pin(ToInt(slot));
  executor.Unpin(ToInt(slot));
  row.pinned = false;
  ++row.open;
  row.modified |= event.writes != std::exchange(row.writes, event.writes);
  row.unneeded = event.next_use.kind == core::NextUse::Kind::kNever;
  Progressed(part.pages.get());
}

void PageStore::On(const core::StreamComplete& event) {
  SlotId slot{};
  if (Client* client = Find(event.tensor, &slot))
    Reach(client->parts.at(client->rows[ToInt(slot)].device), slot);
}

// A put's ticket is behind those of earlier puts: its stream has waited for them.
void PageStore::Reach(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  core::PageExecutor& executor = part.pages->executor();
  if (row.open == 0) return;
  if (row.lives && std::exchange(row.modified, false)) executor.Modify(ToInt(slot));
  // Unless a get was faster.
  if (row.lives && row.unneeded && !row.pinned && hooks_.drop(part.client->id, slot)) {
    End(part, slot);
    row.lost = true;
  }
  for (; row.open > 0; --row.open) executor.Reach(ToInt(slot));
  if (part.client->trims) share_due_ = true;
  Progressed(part.pages.get());
}

void PageStore::End(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  part.pages->executor().End(ToInt(slot));
  SetAway(part, slot, false);
  part.client->live -= row.size;
  row.lives = false;
}

void PageStore::On(const core::Freed& event) {
  SlotId slot{};
  Client* client = Find(event.tensor, &slot);
  if (client == nullptr) return;
  Row& row = client->rows[ToInt(slot)];
  Part& part = client->parts.at(row.device);
  core::PageExecutor& executor = part.pages->executor();
  // The client frees what it has asked for: its own concern.
  if (row.request) return;
  if (row.pinned) {
    executor.Unpin(ToInt(slot));
    row.pinned = false;
    ++row.open;
  }
  if (row.lives) End(part, slot);
  Reach(part, slot);
  ++client->stats.frees;
  ++stats_.frees;
  replies_.push_back(core::Release{client->id, slot, row.id});
  EndRow(part, slot);
  Progressed(part.pages.get());
}

void PageStore::On(const core::PinnedHeld& event) {
  pinned_[event.tenant] = event.bytes;
}

void PageStore::On(const core::PinnedUsed& event) {
  clients_.at(event.client)->pinned = event.bytes;
}

void PageStore::On(const core::TimePassed& /*event*/) {
  while (!deadlines_.empty() && std::get<Tick>(*deadlines_.begin()) <= now_) {
    const auto [deadline, id, slot] = *deadlines_.begin();
    Client& client = *clients_.at(id);
    Row& row = client.rows[ToInt(slot)];
    Part& part = client.parts.at(row.device);
    Error error{ErrorCode::kOutOfMemory, WhyNoRoom(part, row)};
    if (row.request->held) {
      part.pages->executor().Refuse(ToInt(slot));
      std::erase(part.refused, slot);
      row.pinned = false;
    }
    std::erase(part.waiting, slot);
    Fail(part, slot, std::move(error));
  }
}

// ---- ClientPages::Owner.

bool PageStore::Revoke(ClientPages* pages, TensorNumber tensor) {
  Part& part = PartOf(pages);
  if (!hooks_.drop(part.client->id, SlotOf(tensor))) return false;
  SetAway(part, SlotOf(tensor), true);
  return true;
}

void PageStore::Publish(ClientPages* pages, TensorNumber tensor) {
  Part& part = PartOf(pages);
  SetAway(part, SlotOf(tensor), false);
  ++part.client->stats.prefetches;
  ++stats_.prefetches;
  hooks_.publish(part.client->id, SlotOf(tensor), pages->device(), pages->AddressOf(tensor));
}

void PageStore::Grant(ClientPages* pages, TensorNumber tensor) {
  PartOf(pages).granted.push_back(SlotOf(tensor));
  Progressed(pages);
}

void PageStore::Refuse(ClientPages* pages, TensorNumber tensor) {
  PartOf(pages).refused.push_back(SlotOf(tensor));
  Progressed(pages);
}

void PageStore::MapsQueued(ClientPages* pages) {
  hooks_.send_maps(PartOf(pages).client->id);
}

void PageStore::Progressed(ClientPages* pages) {
  Part& part = PartOf(pages);
  if (!std::exchange(part.progressed, true)) progressed_.push_back(pages);
}

void PageStore::PageGone(ClientPages* /*pages*/) {
  share_due_ = true;
}

void PageStore::MapsEnded(ClientId client, const std::vector<MapOrders::Ended>& ended) {
  Client& of = *clients_.at(client);
  for (const MapOrders::Ended& one : ended) {
    const auto part = of.parts.find(one.device);
    if (part == of.parts.end()) continue;
    part->second.pages->Ended(one);
    Progressed(part->second.pages.get());
  }
}

void PageStore::RunProgressed() {
  // One step may have others as its consequence.
  while (!progressed_.empty()) {
    const std::vector<ClientPages*> pages = std::exchange(progressed_, {});
    for (ClientPages* one : pages) {
      const auto part = parts_.find(one);
      if (part == parts_.end()) continue;
      part->second->progressed = false;
      Step(*part->second);
    }
  }
}

void PageStore::Step(Part& part) {
  core::PageExecutor& executor = part.pages->executor();
  executor.Start();
  CountMoves(part);
  if (part.client->gone) return;
  // Pages that were given up, and are needed again.
  const core::plan::MoveView view = executor.books().view();
  while (executor.books().memory().pages() < view.limits.pages &&
         core::plan::FirstLack(executor.books().view())) {
    executor.AddPage();
    executor.Start();
  }
  for (const SlotId slot : std::exchange(part.granted, {})) Answer(part, slot);
  for (const SlotId slot : std::exchange(part.refused, {})) {
    part.client->rows[ToInt(slot)].pinned = false;
    if (part.client->rows[ToInt(slot)].request)
      Fail(part, slot, {ErrorCode::kDevice, "a copy of its bytes failed"});
  }
  ServeWaiting(part);
  // What others hold beyond what they need may do.
  share_due_ |= parts_.size() > 1 && (!part.waiting.empty() || core::plan::FirstLack(view));
}

void PageStore::CountMoves(Part& part) {
  const core::PageExecutor::Stats now = part.pages->executor().stats();
  for (core::PlannerStats* stats : {&stats_, &part.client->stats}) {
    stats->in += now.in - part.counted.in;
    stats->out += now.out - part.counted.out;
  }
  part.counted = now;
}

Tick PageStore::NextWake() const {
  Tick next = deadlines_.empty() ? core::kNever : std::get<Tick>(*deadlines_.begin());
  for (const auto& [pages, part] : parts_) next = std::min(next, pages->NextWake());
  return next;
}

// ---- Views.

TensorId PageStore::Find(ClientId client, SlotId slot) const {
  const auto& rows = clients_.at(client)->rows;
  return ToInt(slot) < rows.size() ? rows[ToInt(slot)].id : core::kNoTensor;
}

core::TensorView PageStore::View(TensorId tensor) const {
  const auto& [id, slot] = by_id_.at(tensor);
  const Client& client = *clients_.at(id);
  const Row& row = client.rows[ToInt(slot)];
  const ClientPages& pages = *client.parts.at(row.device).pages;
  const core::PageTensors::Row& placed = pages.executor().tensors()[ToInt(slot)];
  core::TensorView view{};
  view.id = tensor;
  view.client = id;
  view.slot = slot;
  view.name = row.name;
  view.size = row.size;
  view.device = row.device;
  view.residency = placed.away ? core::Residency::kAway : core::Residency::kOnDevice;
  if (!placed.away && row.lives) view.device_offset = pages.AddressOf(ToInt(slot));
  view.in_use = row.pinned;
  const core::plan::UnitState& first = pages.executor().books()[placed.units.first];
  view.dirty = first.life == core::PageState::kDirty;
  view.has_copy = first.pool != core::plan::kNoPool;
  view.away = core::kHostPool;
  return view;
}

core::Explanation PageStore::Explain(TensorId tensor, Tick /*now*/) const {
  core::Explanation why;
  why.tensor = View(tensor);
  return why;
}

bool PageStore::List(ClientId client, uint32_t* slot, size_t limit,
                     std::vector<core::TensorView>* views) const {
  constexpr uint32_t kLooks = 4096;
  const auto& rows = clients_.at(client)->rows;
  for (uint32_t looks = 0; looks < kLooks && limit > 0; ++looks, ++*slot) {
    if (*slot >= rows.size()) return false;
    if (!rows[*slot].lives) continue;
    views->push_back(View(rows[*slot].id));
    --limit;
  }
  return *slot < rows.size();
}

core::ClientView PageStore::View(ClientId id) const {
  const Client& client = *clients_.at(id);
  core::ClientView view;
  view.client = id;
  view.tenant = client.tenant;
  view.budgets = client.budgets;
  view.tensors = client.tensors;
  view.pinned = client.pinned;
  view.waiting = client.stats.waiting;
  for (const auto& [device, part] : client.parts) {
    const core::PageBooks& books = part.pages->executor().books();
    view.device_held += part.pages->page() * part.pages->made();
    view.in_use += part.pages->page() * core::PagesInUse(books);
    view.host_used += books.copies().pools().used();
  }
  view.device_used = client.live - client.away;
  return view;
}

core::TenantView PageStore::View(core::TenantId tenant, DeviceId device) const {
  core::TenantView view{};
  for (const auto& [id, client] : clients_) {
    const auto part = client->parts.find(device);
    if (client->tenant == tenant && part != client->parts.end())
      view.held += part->second.pages->page() * part->second.pages->made();
  }
  return view;
}

std::vector<ClientId> PageStore::Clients() const {
  std::vector<ClientId> ids;
  for (const auto& [id, client] : clients_) {
    if (!client->gone) ids.push_back(id);
  }
  return ids;
}

core::TierView PageStore::DeviceTier(DeviceId device) const {
  core::TierView tier{.capacity = limits_[ToInt(device)], .held = {}, .used = {}};
  for (const auto& [id, client] : clients_) {
    const auto part = client->parts.find(device);
    if (part == client->parts.end()) continue;
    const ClientPages& pages = *part->second.pages;
    tier.held += pages.page() * pages.made();
    tier.used += pages.page() * pages.executor().books().totals().occupied().pages();
  }
  tier.used = std::min(tier.used, tier.held);
  return tier;
}

std::string PageStore::NameOf(core::PoolId pool) const {
  if (pool == core::kHostPool) return "host";
  return "device " + std::to_string(ToInt(core::DeviceOf(pool)));
}

core::TierView PageStore::HostTier() const {
  Bytes pinned;
  for (const auto& [tenant, bytes] : pinned_) pinned += bytes;
  return {.capacity = options_.host_capacity,
          .held = host_.made() + pinned,
          .used = host_.used() + pinned};
}

core::Status PageStore::MayPin(ClientId client, Bytes block, Bytes slab,
                               const IdlePinned& without) const {
  Bytes pinned;
  for (const auto& [tenant, bytes] : pinned_) pinned += bytes;
  const Bytes taken = pinned + host_.made() + slab;
  if (taken <= options_.host_capacity + without.own + without.others) return core::Ok();
  return Error{ErrorCode::kOutOfMemory,
               "pinned memory is exhausted: no room for " + core::SizeText(block) + " of client " +
                   std::to_string(ToInt(client)) + " in the host pool of " +
                   core::SizeText(options_.host_capacity) + ", which holds " +
                   core::SizeText(host_.used()) + " of tensors and " + core::SizeText(pinned) +
                   " of pinned blocks; free pinned blocks or tensors"};
}

const core::PlannerStats& PageStore::StatsOf(ClientId client) const {
  return clients_.at(client)->stats;
}

}  // namespace ravenstore::daemon
