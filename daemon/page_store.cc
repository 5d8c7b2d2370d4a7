#include "daemon/page_store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "core/books/page_views.h"
#include "core/check.h"
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

namespace {

// That a page takes on its way from one client to another (decision 0076).
constexpr auto kMakingPage = std::chrono::microseconds(200);

// A client that has released no page for that time is late: a call of another takes other pages.
constexpr auto kPatience = std::chrono::milliseconds(100);

constexpr SlotId SlotOf(TensorNumber tensor) {
  return SlotId{tensor};
}

// The size of a page of each device.
std::vector<Bytes> PagesFor(const PageStore::Options& options) {
  std::vector<Bytes> pages;
  for (const Bytes capacity : options.device_capacity)
    pages.push_back(options.page > Bytes{}
                        ? options.page
                        : core::plan::PageOfDevice(capacity, options.host_capacity));
  return pages;
}

}  // namespace

PageStore::PageStore(Options options, device::Devices devices, AwayMemory* host,
                     WorkerPool* workers, Mailbox* mailbox, Hooks hooks)
    : options_(std::move(options)),
      devices_(std::move(devices)),
      workers_(workers),
      mailbox_(mailbox),
      hooks_(std::move(hooks)),
      pools_({.host_capacity = options_.host_capacity,
              .host_step = options_.host_step,
              .host_ahead = options_.host_ahead,
              .links = options_.links,
              .others = options_.others,
              .device_granularity = options_.device_granularity,
              .transfers = options_.transfers},
             devices_, host,
             {.grow = [this](core::GrowPool action) { replies_.push_back(action); },
              .shrink = [this](core::ShrinkPool action) { replies_.push_back(action); },
              .pacer = hooks_.pacer}),
      moves_(devices_, options_.transfers, static_cast<DeviceMoves::Owner*>(this)),
      limits_(options_.device_capacity),
      quotas_({.device_capacity = options_.device_capacity,
               .page = PagesFor(options_),
               .host_capacity = options_.host_capacity,
               .guaranteed_part = options_.guaranteed_part}) {
  const std::vector<Bytes> sizes = PagesFor(options_);
  for (size_t i = 0; i < devices_.size(); ++i) {
    const Bytes page = sizes[i];
    const auto pages = static_cast<uint32_t>(options_.device_capacity[i].count() / page.count());
    Device& on = on_.emplace_back();
    on.page = page;
    on.scheduler = std::make_unique<core::PageScheduler>(
        core::PageScheduler::Options{
            .pages = pages,
            .device = DeviceId{static_cast<uint16_t>(i)},
            .making = kMakingPage,
            .guaranteed_part = static_cast<uint32_t>(options_.guaranteed_part),
            .patience = kPatience},
        static_cast<core::PageMaker*>(this));
  }
}

PageStore::~PageStore() = default;

core::Status PageStore::Open() {
  RAVEN_RETURN_IF_ERROR(pools_.Open(devices_));
  return moves_.Open();
}

Bytes PageStore::LargestPage() const {
  Bytes largest;
  for (const Device& device : on_) largest = std::max(largest, device.page);
  return largest;
}

void PageStore::Apply(const core::Event& event, Tick now, core::Plan* plan) {
  now_ = now;
  std::visit([this](const auto& one) { On(one); }, event);
  std::move(replies_.begin(), replies_.end(), std::back_inserter(*plan));
  replies_.clear();
}

bool PageStore::Poll(Tick now, core::Plan* plan) {
  now_ = now;
  MakeRoomInPools();
  bool busy = pools_.Poll(now);
  busy |= moves_.Poll(now);
  busy |= ForgetRows();
  if (std::exchange(room_grew_, false)) {
    for (const auto& [pages, part] : parts_) {
      if (part->client->stats.waiting > 0) Progressed(pages);
    }
  }
  while (!retries_.empty() && retries_.begin()->first <= now) {
    ClientPages* const pages = retries_.extract(retries_.begin()).value().second;
    pages->Retry();
    Progressed(pages);
  }
  if (stats_.waiting > 0 && now >= late_look_) {
    late_look_ = now + kPatience;
    for (Device& device : on_) device.advances = true;
  }
  for (const Device& device : on_) busy |= device.advances;
  if (busy) LimitHarvests();
  // A call that waits may have the room of copies that have become redundant.
  const bool waits = busy && stats_.waiting > 0;
  if (HavePoolsChanged() || divide_pools_ || waits) DividePools();
  divide_pools_ = false;
  if (now >= evacuate_at_) Evacuate();
  if (now >= pinned_wanted_until_) EndPinnedWanted();
  for (Device& device : on_) RunDevice(device);
  Apply(core::TimePassed{}, now, plan);
  // A request that has failed, or moved to another device, has made room.
  return busy || room_grew_ ||
         std::any_of(on_.begin(), on_.end(), [](const Device& device) { return device.advances; });
}

void PageStore::RunDevice(Device& device) {
  // One step may have others as its consequence.
  while (std::exchange(device.advances, false)) {
    advancing_ = DeviceId{static_cast<uint16_t>(&device - on_.data())};
    device.scheduler->Advance(now_.time_since_epoch());
    // RunPart() has no effect on the list: it is of the last Advance().
    for (const ClientId id : device.scheduler->started()) {
      const auto client = clients_.find(id);
      if (client != clients_.end()) RunPart(client->second->parts.at(advancing_));
    }
    // It is made where the client needs it first (daemon/client_pages.h).
    if (const auto makes = std::exchange(device.makes, std::nullopt)) {
      device.scheduler->PageMade(*makes);
      Progressed(clients_.at(*makes)->parts.at(advancing_).pages.get());
    }
  }
}

void PageStore::RunPart(Part& part) {
  if (part.client->gone) return;
  core::PageScheduler& scheduler = SchedulerOf(part);
  CountMoves(part);
  if (scheduler.TakeWoken(part.client->id)) {
    while (const auto tensor = scheduler.HoldWaiting(part.client->id)) {
      Progressed(part.pages.get());
      Handle(part, SlotOf(*tensor), core::CallResult::kHeld, false);
    }
  }
  for (const SlotId slot : std::exchange(part.granted, {})) Answer(part, slot);
  for (const SlotId slot : std::exchange(part.ended_promises, {})) EndPromise(part, slot);
  for (const SlotId slot : std::exchange(part.refused, {})) {
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
  MakeRoomForCopies(part);
}

// ---- Clients and their shares.

void PageStore::On(const core::TenantLimits& event) {
  quotas_.SetBudgets(event.tenant, event.budgets);
  LimitsChanged(event.tenant);
}

void PageStore::On(const core::ClientAttached& event) {
  auto client = std::make_unique<Client>();
  client->id = event.client;
  client->tenant = event.tenant;
  client->attached = now_;
  clients_[event.client] = std::move(client);
  quotas_.Attach(event.client, event.tenant, event.budgets);
  LimitsChanged(event.tenant);
}

void PageStore::On(const core::ClientLimits& event) {
  const Client* client = FindPresent(event.client);
  if (client == nullptr) return;
  quotas_.SetBudgets(event.client, event.budgets);
  LimitsChanged(client->tenant);
}

void PageStore::On(const core::DeviceLimit& event) {
  const size_t device = ToInt(event.device);
  limits_[device] = std::min(event.capacity, options_.device_capacity[device]);
  on_[device].scheduler->SetPages(
      static_cast<uint32_t>(limits_[device].count() / on_[device].page.count()));
  on_[device].advances = true;
}

void PageStore::LimitsChanged(core::TenantId tenant) {
  divide_pools_ = true;
  room_grew_ = true;
  for (uint16_t i = 0; i < on_.size(); ++i) {
    core::DeviceTenants& tenants = on_[i].scheduler->tenants();
    if (quotas_.IsPresent(tenant)) {
      tenants.Set(tenant, quotas_.PagesOf(tenant, DeviceId{i}));
    } else {
      tenants.Remove(tenant);
    }
    on_[i].advances = true;
  }
  for (const auto& [pages, part] : parts_) {
    if (part->client->gone) continue;
    // What others leave is another, too.
    Progressed(pages);
    if (part->client->tenant != tenant) continue;
    const ClientId client = part->client->id;
    SchedulerOf(*part).SetMost(client, quotas_.MostOf(client, pages->device()), false);
    UpdateRoom(pages);
  }
}

void PageStore::MakeRoomForCopies(const Part& part) {
  using Limit = core::CopyQuota::Limit;
  const core::CopyQuota& copies = quotas_.copies();
  const ClientId asker = part.client->id;
  if (part.client->stats.waiting == 0) {
    if (room_for_ == asker) room_for_.reset();
    return;
  }
  UpdateRoom(part.pages.get());
  const auto lacks = core::plan::LackedCopyRoom(ExecutorOf(part).books().view());
  if (!lacks) return;
  for (const Limit limit : {Limit::kClient, Limit::kTenant, Limit::kPool}) {
    Bytes room = copies.Room(asker, limit);
    if (limit == Limit::kPool) room = std::min(room, pools_.host().Room());
    if (room >= *lacks) continue;
    const Part* first = nullptr;
    for (const auto& [pages, other] : parts_) {
      const ClientId holder = other->client->id;
      if (other == &part || other->client->gone || !copies.MayDrop(holder, asker, limit)) continue;
      if (ExecutorOf(*other).books().copies().pools().redundant(pages->host()) == Bytes{}) continue;
      if (first == nullptr ||
          copies.RankOf(holder, asker) < copies.RankOf(first->client->id, asker))
        first = other;
    }
    if (first == nullptr) return ReclaimPinned(*part.client, limit);
    room_for_ = asker;
    UpdateRoom(first->pages.get());
    // Its memory is free after the next start of the executor.
    core::PageBooks& books = SchedulerOf(*first).Moved(first->client->id).books();
    books.MoveCopy(*core::CopyToDrop(books, first->pages->host()), core::plan::kNoPool);
    Progressed(first->pages.get());
    return;
  }
}

void PageStore::On(const core::ClientGone& event) {
  Client& client = *clients_.at(event.client);
  client.gone = true;
  if (room_for_ == client.id) room_for_.reset();
  moves_.Forget(client.id);
  for (auto& [device, part] : client.parts) {
    LogMoves(part);
    part.pages->Retire();
    SchedulerOf(part).Leave(client.id);
    Progressed(part.pages.get());
  }
  if (!client.rows.empty()) gone_.push_back(std::exchange(client.rows, {}));
  quotas_.Detach(client.id);
  LimitsChanged(client.tenant);
  if (client.stats.waiting == 0) return;
  std::erase_if(deadlines_, [&](const auto& of) { return std::get<ClientId>(of) == event.client; });
  stats_.waiting -= std::exchange(client.stats.waiting, 0);
}

// To find the reason that a job waits.
void PageStore::LogMoves(const Part& part) const {
  const core::ScheduledClient& client =
      on_[ToInt(part.pages->device())].scheduler->client(part.client->id);
  const core::PageExecutor::Stats& moves = client.executor().stats();
  const core::ForesightStats calls = client.foresight().stats();
  spdlog::debug(
      "client {}: device {}: {} in, {} out, {} maps, {} emergencies, {} exchanges, {} not revoked, "
      "{} copies dropped; {} plans, {} of {} creates elsewhere than planned, {} of {} calls found "
      "where they were expected; addresses up to {}",
      ToInt(part.client->id), ToInt(part.pages->device()), core::SizeText(moves.in),
      core::SizeText(moves.out), moves.maps, moves.emergencies, moves.exchanges, moves.not_revoked,
      moves.dropped_copies, calls.plans, calls.elsewhere, calls.creates, calls.found,
      calls.compared, core::SizeText(calls.range_end));
}

bool PageStore::IsQuiet(ClientId client) const {
  const Client& of = *clients_.at(client);
  // Memory is given back to the kernel when a client is forgotten: its rows are free by then.
  return gone_.empty() && std::all_of(of.parts.begin(), of.parts.end(), [&](const auto& part) {
           return part.second.pages->IsQuiet() &&
                  !on_[ToInt(part.first)].scheduler->HasClient(client);
         });
}

void PageStore::Forget(ClientId client) {
  RAVEN_CHECK(IsQuiet(client));
  for (const auto& [device, part] : clients_.at(client)->parts) {
    parts_.erase(part.pages.get());
    std::erase_if(retries_, [&](const auto& retry) { return retry.second == part.pages.get(); });
  }
  clients_.erase(client);
}

void PageStore::On(const core::Trimmed& event) {
  Client* client = FindPresent(event.client);
  if (client == nullptr) return;
  for (auto& [device, part] : client->parts) {
    SchedulerOf(part).SetMost(event.client, quotas_.MostOf(event.client, device), true);
    Progressed(part.pages.get());
  }
}

PageStore::Part& PageStore::PartOf(Client& client, DeviceId device) {
  Part& part = client.parts[device];
  if (part.pages != nullptr) return part;
  const auto [attachment, maps] = hooks_.attachment(client.id);
  std::vector<PagePool*> pools;
  for (StorePools::Member* member : pools_.Of(device)) pools.push_back(member->pool.get());
  Device& on = on_[ToInt(device)];
  part.client = &client;
  part.pages = std::make_unique<ClientPages>(
      ClientPages::Options{.device = device,
                           .arena = options_.arena[ToInt(device)],
                           .page = on.page,
                           .checks = options_.checks},
      attachment, devices_[ToInt(device)], pools, pools_.HostOf(device), maps, workers_, mailbox_,
      static_cast<ClientPages::Owner*>(this));
  parts_[part.pages.get()] = &part;
  const uint32_t most = quotas_.MostOf(client.id, device);
  core::PageScheduler::Client joins;
  joins.id = client.id;
  joins.tenant = client.tenant;
  joins.backend = part.pages.get();
  joins.limits = {.page = on.page, .pages = most, .pools = pools_.CopyPoolsOf(device)};
  joins.most = most;
  joins.addresses = AddressesOn(device);
  on.scheduler->Join(std::move(joins));
  part.pages->SetExecutor(&on.scheduler->client(client.id).executor());
  DividePools();
  return part;
}

const core::PageExecutor& PageStore::ExecutorOf(const Part& part) const {
  return on_[ToInt(part.pages->device())].scheduler->client(part.client->id).executor();
}

// ---- Requests.

PageStore::Row& PageStore::RowOf(Client& client, SlotId slot) {
  client.rows.GrowTo(ToInt(slot) + 1);
  return client.rows[ToInt(slot)];
}

PageStore::Client* PageStore::FindPresent(ClientId id) const {
  const auto client = clients_.find(id);
  return client == clients_.end() || client->second->gone ? nullptr : client->second.get();
}

PageStore::Found PageStore::Find(TensorId tensor) const {
  const auto of = ids_.Find(tensor);
  Client* client = of ? FindPresent(of->client) : nullptr;
  if (client == nullptr) return {};
  return {client, of->slot};
}

bool PageStore::ForgetRows() {
  constexpr int kRows = 4096;  // some 100 us
  if (gone_.empty()) return false;
  Rows& rows = gone_.back();
  for (int i = 0; i < kRows && !rows.empty(); ++i) {
    if (rows.back().id != core::kNoTensor) ids_.Remove(rows.back().id);
    rows.pop_back();
  }
  if (rows.empty()) gone_.pop_back();
  return true;
}

core::Duration PageStore::ClockOf(ClientId id) const {
  const Client& client = *clients_.at(id);
  return now_ - client.attached - client.stats.waited;
}

void PageStore::On(const core::CreateRequested& event) {
  Client& client = *clients_.at(event.client);
  Part& part = PartOf(client, event.device);
  Row& row = RowOf(client, event.slot);
  row = {};
  row.name = event.name;
  row.device = event.device;
  row.size = event.size;
  AddRequest(client, event.slot, {.is_create = true, .deadline = event.deadline, .asked = now_});
  if (event.size == Bytes{})
    return Fail(part, event.slot, {ErrorCode::kInvalidArgument, "a tensor has at least 1 byte"});
  row.id = ids_.Add({client.id, event.slot});
  ++client.tensors;
  Progressed(part.pages.get());
  Handle(part, event.slot, Create(part.pages.get(), ToInt(event.slot), event.size, event.stream),
         event.fail_fast || event.fail_stuck);
}

void PageStore::On(const core::FetchRequested& event) {
  const auto [client, slot] = Find(event.tensor);
  if (client == nullptr) return;
  Row& row = client->rows[ToInt(slot)];
  if (row.request || row.is_freed()) return;
  Part& part = client->parts.at(row.device);
  const bool is_late = row.device == event.device && IsComing(part, ToInt(slot));
  for (core::PlannerStats* stats : {&stats_, &client->stats})
    ++(is_late ? stats->late_hits : stats->misses);
  AddRequest(*client, slot, {.awaits = event.awaits, .deadline = event.deadline, .asked = now_});
  if (row.device != event.device && !row.lost) return BeginMove(*client, slot, event.device);
  Progressed(part.pages.get());
  Handle(part, slot, Get(part.pages.get(), ToInt(slot)), event.fail_stuck);
}

bool PageStore::IsComing(const Part& part, TensorNumber tensor) const {
  const core::PageExecutor& executor = ExecutorOf(part);
  const core::plan::UnitSpan& units = executor.tensors()[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    if (executor.books()[units[i]].life == core::PageState::kAway) return false;
  }
  return units.count > 0;
}

void PageStore::BeginMove(Client& client, SlotId slot, DeviceId device) {
  const Row& row = client.rows[ToInt(slot)];
  Part& from = client.parts.at(row.device);
  if (row.is_kept) {
    return Fail(from, slot,
                {ErrorCode::kWrongState,
                 "it is kept in place on device " + std::to_string(ToInt(row.device))});
  }
  Part& to = PartOf(client, device);
  moves_.Begin(client.id, ToInt(slot), {&SchedulerOf(from), from.pages.get()},
               {&SchedulerOf(to), to.pages.get()}, row.ends.empty());
}

void PageStore::Handle(Part& part, SlotId slot, core::CallResult result, bool fail_fast) {
  if (result == core::CallResult::kHeld) {
    if (ExecutorOf(part).IsResident(ToInt(slot))) Answer(part, slot);
    return;
  }
  if (result == core::CallResult::kWaits) {
    if (!fail_fast) return;
    SchedulerOf(part).Refuse(part.client->id, ToInt(slot));
  }
  Fail(part, slot, ErrorOf(part.pages.get(), ToInt(slot), result));
}

Error PageStore::ErrorOf(ClientPages* pages, TensorNumber tensor, core::CallResult result) const {
  const Part& part = *parts_.at(pages);
  const Row& row = part.client->rows[tensor];
  if (result == core::CallResult::kLost) {
    return {ErrorCode::kLost, row.unneeded ? "its client said that it will not be read again"
                                           : pools_.NameOf(row.lost_by) + " lost its bytes"};
  }
  if (result == core::CallResult::kNoAddresses) {
    return {ErrorCode::kOutOfMemory,
            "no place among the " + core::SizeText(AddressesOn(pages->device())) +
                " of addresses that a client's tensors have on device " +
                std::to_string(ToInt(pages->device())) + "; free some of its tensors"};
  }
  if (result == core::CallResult::kWaits && pages->failure()) return *pages->failure();
  std::string why = WhyNoRoom(part, row);
  if (result == core::CallResult::kNoPlace) {
    why += "; the pools for copies have no room for more tensors";
  }
  return {ErrorCode::kOutOfMemory, std::move(why)};
}

void PageStore::AddRequest(Client& client, SlotId slot, const Request& request) {
  client.rows[ToInt(slot)].request = std::make_unique<Request>(request);
  deadlines_.insert({request.deadline, client.id, slot});
  ++client.stats.waiting;
  ++stats_.waiting;
}

PageStore::Request PageStore::TakeRequest(Part& part, SlotId slot) {
  const Request request = *std::exchange(part.client->rows[ToInt(slot)].request, nullptr);
  deadlines_.erase({request.deadline, part.client->id, slot});
  --part.client->stats.waiting;
  --stats_.waiting;
  return request;
}

PageStore::Request PageStore::TakeAnswered(Part& part, SlotId slot) {
  const Request request = TakeRequest(part, slot);
  part.client->stats.waited += now_ - request.asked;
  stats_.waited += now_ - request.asked;
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

std::string PageStore::WhyNoRoom(const Part& part, const Row& row) const {
  const ClientId client = part.client->id;
  const core::TenantId tenant = part.client->tenant;
  const DeviceId device = part.pages->device();
  std::string text = "device " + std::to_string(ToInt(device)) + ": no room for " +
                     core::SizeText(row.size) + " within client " + std::to_string(ToInt(client)) +
                     "'s budget of " + core::SizeText(quotas_.BudgetsOf(client).device) +
                     " and its tenant's of " + core::SizeText(quotas_.BudgetsOf(tenant).device) +
                     ", in pages of " + core::SizeText(part.pages->page()) +
                     "; holders:" + DescribeHolders(tenant, HoldersOf(device));
  if (const Bytes kept = GuaranteedToOthers(device, tenant); kept > Bytes{})
    text += " other tenants are guaranteed " + core::SizeText(kept) + ";";
  const core::CopyQuota& copies = quotas_.copies();
  if (copies.Room(client) < part.pages->page()) {
    text += " of the host pool of " + core::SizeText(options_.host_capacity) +
            " this client has no more for copies;";
    if (copies.IsKeptFrom(client, part.pages->page())) text += HostHolder();
  }
  return text + " put or free tensors, raise the budgets, or wait longer";
}

void PageStore::Fail(Part& part, SlotId slot, Error error) {
  Row& row = part.client->rows[ToInt(slot)];
  if (!TakeRequest(part, slot).is_create) {
    const Part& of = part.client->parts.at(row.device);
    core::FetchError failed;
    failed.tensor = row.id;
    failed.client = part.client->id;
    failed.slot = slot;
    failed.error = std::move(error);
    if (!row.away && row.lives)
      failed.stays = core::Place{core::PoolOf(row.device), of.pages->AddressOf(ToInt(slot))};
    replies_.push_back(std::move(failed));
    return;
  }
  replies_.push_back(core::AllocError{part.client->id, slot, std::move(error)});
  EndRow(part, slot);
}

void PageStore::EndRow(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  if (row.id != core::kNoTensor) {
    ids_.Remove(row.id);
    --part.client->tensors;
  }
  row = {};
}

// Its pages are there.
void PageStore::Answer(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  if (!row.request) return;  // a use that the client did not have to ask for
  if (moves_.Moves(part.client->id, ToInt(slot))) {
    // One that was discarded stays so on its device.
    if (ExecutorOf(part).tensors()[ToInt(slot)].lives()) SetAway(part, slot, false);
    return moves_.Granted(part.client->id, ToInt(slot), part.pages.get());
  }
  const bool begins = !ExecutorOf(part).tensors()[ToInt(slot)].lives();
  SchedulerOf(part).BeginUse(part.client->id, ToInt(slot));
  Progressed(part.pages.get());
  if (row.request->is_create) {
    TakeAnswered(part, slot);
    row.lives = true;
    part.client->live += row.size;
    ++part.client->stats.creates;
    ++stats_.creates;
    replies_.push_back(core::AllocReply{part.client->id, slot, row.id, row.device,
                                        part.pages->AddressOf(ToInt(slot))});
    return;
  }
  ++row.past.gets;
  AnswerFetch(part, slot, begins);
}

void PageStore::AnswerFetch(Part& part, SlotId slot, bool recompute) {
  Row& row = part.client->rows[ToInt(slot)];
  TakeAnswered(part, slot);
  SetAway(part, slot, false);
  core::FetchReply reply;
  reply.tensor = row.id;
  reply.client = part.client->id;
  reply.slot = slot;
  reply.device = row.device;
  reply.offset = part.pages->AddressOf(ToInt(slot));
  reply.recompute = recompute;
  part.client->stats.recomputes += recompute ? 1 : 0;
  stats_.recomputes += recompute ? 1 : 0;
  replies_.push_back(reply);
}

core::Status PageStore::KeepInPlace(ClientId id, SlotId slot, Keeping keeping) {
  Client& client = *clients_.at(id);
  Row& row = client.rows[ToInt(slot)];
  const bool keeps = keeping == Keeping::kBegins;
  if (row.is_kept == keeps) return core::Ok();
  Part& part = client.parts.at(row.device);
  const core::PageTensors::Row& placed = ExecutorOf(part).tensors()[ToInt(slot)];
  const bool in_use = row.is_usable() && placed.pinned;
  if (keeps && !in_use) return Error{ErrorCode::kWrongState, "the tensor is not in use"};
  row.is_kept = keeps;
  core::PageExecutor& executor = SchedulerOf(part).Moved(id);
  if (keeps) {
    executor.KeepInPlace(placed.units);
  } else {
    // A network card that registered the memory may have written there without a get.
    if (placed.lives() && executor.IsResident(ToInt(slot))) executor.Modify(ToInt(slot));
    executor.EndKeepInPlace(placed.units);
  }
  Progressed(part.pages.get());
  return core::Ok();
}

// ---- What clients did.

void PageStore::On(const core::StepMarked& event) {
  Client* const client = FindPresent(event.client);
  if (client == nullptr) return;
  for (auto& [device, part] : client->parts) SchedulerOf(part).Step(client->id);
}

void PageStore::On(const core::GetSeen& event) {
  const auto [client, slot] = Find(event.tensor);
  if (client == nullptr) return;
  ++client->stats.hits;
  ++stats_.hits;
  Row& row = client->rows[ToInt(slot)];
  Part& part = client->parts.at(row.device);
  ++row.past.gets;
  row.past.prefetched = false;
  if (!row.is_usable() || ExecutorOf(part).tensors()[ToInt(slot)].pinned) return;
  SchedulerOf(part).Use(client->id, ToInt(slot), ClockOf(client->id));
  Progressed(part.pages.get());
}

void PageStore::On(const core::PutSeen& event) {
  const auto [client, slot] = Find(event.tensor);
  if (client == nullptr || !client->rows[ToInt(slot)].is_usable()) return;
  Row& row = client->rows[ToInt(slot)];
  Part& part = client->parts.at(row.device);
  // A use that was neither read nor ended yet.
  if (!ExecutorOf(part).tensors()[ToInt(slot)].pinned)
    SchedulerOf(part).Use(client->id, ToInt(slot), ClockOf(client->id));
  const bool modified = event.writes != std::exchange(row.writes, event.writes);
  row.unneeded = event.next_use.kind == core::NextUse::Kind::kNever;
  row.past.next_use = event.next_use;
  row.past.put_at = ClockOf(client->id);
  row.past.priority = event.priority;
  SchedulerOf(part)
      .Moved(client->id)
      .SetRecomputes(
          ToInt(slot),
          !row.unneeded && event.recompute > core::Duration{0} &&
              event.recompute < core::BothCopies(options_.links[ToInt(row.device)], row.size));
  row.ends.push_back(SchedulerOf(part).Put(client->id, ToInt(slot), modified, event.next_use,
                                           ClockOf(client->id), event.priority));
  Progressed(part.pages.get());
}

void PageStore::On(const core::StreamComplete& event) {
  const auto [client, slot] = Find(event.tensor);
  if (client != nullptr) Reach(client->parts.at(client->rows[ToInt(slot)].device), slot);
}

// A put's ticket is behind those of earlier puts: its stream has waited for them.
void PageStore::Reach(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  row.is_reached |= row.is_promised;
  if (row.is_promised) return;
  const size_t puts = row.ends.size() - (row.has_free() ? 1 : 0);
  if (puts == 0) return;
  core::PageScheduler& scheduler = SchedulerOf(part);
  for (size_t i = 0; i < puts; ++i) scheduler.EndUse(part.client->id, row.ends[i]);
  row.ends.erase(row.ends.begin(), row.ends.begin() + static_cast<ptrdiff_t>(puts));
  moves_.Reached(part.client->id, ToInt(slot));
  // Unless a get was faster.
  if (row.lives && row.unneeded && !ExecutorOf(part).tensors()[ToInt(slot)].pinned &&
      hooks_.drop(part.client->id, slot)) {
    scheduler.EndBytes(part.client->id, ToInt(slot));
    part.client->live -= row.size;
    row.lives = false;
    row.lost = true;
  }
  Progressed(part.pages.get());
}

// The stream's later work may have the place now, and the memory when the stream has come there.
void PageStore::On(const core::FreeSeen& event) {
  const auto [client, slot] = Find(event.tensor);
  if (client == nullptr) return;
  Row& row = client->rows[ToInt(slot)];
  if (row.request || row.is_freed()) return;
  row.freed_on = event.stream;
  Free(client->parts.at(row.device), slot);
}

void PageStore::Free(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  const ClientId client = part.client->id;
  row.unneeded = false;
  row.ends.push_back(SchedulerOf(part).Free(client, ToInt(slot), ClockOf(client), row.freed_on));
  Progressed(part.pages.get());
}

void PageStore::On(const core::Freed& event) {
  const auto [client, slot] = Find(event.tensor);
  // The client frees what it has asked for: its own concern.
  if (client == nullptr || client->rows[ToInt(slot)].request) return;
  Row& row = client->rows[ToInt(slot)];
  row.is_left |= row.is_promised;
  if (row.is_promised) return;
  Part& part = client->parts.at(row.device);
  if (!row.has_free()) Free(part, slot);
  if (row.is_kept) RAVEN_CHECK(KeepInPlace(client->id, slot, Keeping::kEnds).ok());
  Reach(part, slot);
  SetAway(part, slot, false);
  if (row.lives) client->live -= row.size;
  SchedulerOf(part).EndUse(client->id, row.ends.back());
  ++client->stats.frees;
  ++stats_.frees;
  replies_.push_back(core::Release{client->id, slot, row.id});
  EndRow(part, slot);
  Progressed(part.pages.get());
}

void PageStore::On(const core::PinnedUsed& event) {
  const auto client = clients_.find(event.client);
  if (client == clients_.end()) return;
  client->second->pinned = event.bytes;
  if (client->second->gone) return;
  quotas_.copies().SetPinned(event.client, event.bytes);
  room_grew_ = true;
}

void PageStore::On(const core::TimePassed& /*event*/) {
  while (!deadlines_.empty() && std::get<Tick>(*deadlines_.begin()) <= now_) {
    const auto [deadline, id, slot] = *deadlines_.begin();
    Expire(*clients_.at(id), slot);
  }
}

void PageStore::Expire(Client& client, SlotId slot) {
  Row& row = client.rows[ToInt(slot)];
  if (moves_.Moves(client.id, ToInt(slot))) {
    deadlines_.erase({row.request->deadline, client.id, slot});
    row.request->deadline = core::kNever;
    return moves_.Expire(client.id, ToInt(slot));
  }
  Part& part = client.parts.at(row.device);
  Error error = ErrorOf(part.pages.get(), ToInt(slot), core::CallResult::kWaits);
  SchedulerOf(part).Refuse(client.id, ToInt(slot));
  std::erase(part.refused, slot);
  std::erase(part.granted, slot);
  Progressed(part.pages.get());
  Fail(part, slot, std::move(error));
}

// ---- DeviceMoves::Owner.

core::CallResult PageStore::Create(ClientPages* pages, TensorNumber tensor, Bytes size,
                                   core::StreamId stream) {
  const Part& part = PartOf(pages);
  const ClientId client = part.client->id;
  // Limits that were set before the call count.
  if (std::exchange(divide_pools_, false)) DividePools();
  SetPool(part, pages->host(), quotas_.copies().Most(client));
  const core::CallResult result =
      SchedulerOf(part).Create(client, tensor, size, ClockOf(client), stream);
  UpdateRoom(pages);
  return result;
}

core::CallResult PageStore::Get(ClientPages* pages, TensorNumber tensor) {
  const Part& part = PartOf(pages);
  const ClientId client = part.client->id;
  return part.client->rows[tensor].lost ? core::CallResult::kLost
                                        : SchedulerOf(part).Get(client, tensor, ClockOf(client));
}

void PageStore::Moved(ClientId id, TensorNumber tensor, ClientPages* to, bool recompute) {
  Part& part = PartOf(to);
  Row& row = part.client->rows[tensor];
  row.device = to->device();
  for (core::PlannerStats* stats : {&stats_, &clients_.at(id)->stats}) {
    if (recompute) break;
    stats->in += row.size;
  }
  AnswerFetch(part, SlotOf(tensor), recompute);
}

void PageStore::NotMoved(ClientId id, TensorNumber tensor, Error error) {
  Client& client = *clients_.at(id);
  for (auto& [device, part] : client.parts) {
    std::erase(part.refused, SlotOf(tensor));
    std::erase(part.granted, SlotOf(tensor));
  }
  Fail(client.parts.at(client.rows[tensor].device), SlotOf(tensor), std::move(error));
}

// ---- ClientPages::Owner.

bool PageStore::Revoke(ClientPages* pages, TensorNumber tensor) {
  Part& part = PartOf(pages);
  const ClientId client = part.client->id;
  // The client waits for a tensor that moves: its word is no other's.
  if (!moves_.Moves(client, tensor) && !hooks_.drop(client, SlotOf(tensor))) return false;
  part.client->rows[ToInt(SlotOf(tensor))].past.prefetched = false;
  SetAway(part, SlotOf(tensor), true);
  return true;
}

bool PageStore::IsUnused(ClientPages* pages, TensorNumber tensor) const {
  return hooks_.is_idle(parts_.at(pages)->client->id, SlotOf(tensor));
}

void PageStore::Publish(ClientPages* pages, TensorNumber tensor) {
  Part& part = PartOf(pages);
  SetAway(part, SlotOf(tensor), false);
  part.client->rows[ToInt(SlotOf(tensor))].past.prefetched = true;
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

bool PageStore::Promise(ClientPages* pages, TensorNumber tensor) {
  Part& part = PartOf(pages);
  Row& row = part.client->rows[tensor];
  const ClientId client = part.client->id;
  if (!row.request || row.request->awaits || moves_.Moves(client, tensor) ||
      !hooks_.promise(client, SlotOf(tensor), row.device, pages->AddressOf(tensor)))
    return false;
  row.is_promised = true;
  ++row.past.gets;
  TakeAnswered(part, SlotOf(tensor));
  SetAway(part, SlotOf(tensor), false);
  return true;
}

void PageStore::Arrived(ClientPages* pages, TensorNumber tensor) {
  Part& part = PartOf(pages);
  hooks_.end_promise(part.client->id, SlotOf(tensor), core::Ok());
  part.ended_promises.push_back(SlotOf(tensor));
  Progressed(pages);
}

void PageStore::Break(ClientPages* pages, TensorNumber tensor) {
  Part& part = PartOf(pages);
  Row& row = part.client->rows[tensor];
  const std::string why = row.lost ? ErrorOf(pages, tensor, core::CallResult::kLost).message
                                   : "a copy of its bytes failed";
  hooks_.end_promise(part.client->id, SlotOf(tensor), Error{ErrorCode::kLost, why});
  if (!row.lost) row.lost_by = PoolOf(part, tensor);
  row.lost = true;
  row.lives = false;
  part.client->live -= row.size;
  part.ended_promises.push_back(SlotOf(tensor));
  // It was about to move to another device.
  if (row.request) part.refused.push_back(SlotOf(tensor));
  Progressed(pages);
}

core::PoolId PageStore::PoolOf(const Part& part, TensorNumber tensor) const {
  const core::PageExecutor& executor = ExecutorOf(part);
  const core::plan::UnitSpan& units = executor.tensors()[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    const core::plan::UnitState& state = executor.books()[units[i]];
    if (!state.IsResident() && state.pool != core::plan::kNoPool)
      return PoolsOf(part)[state.pool]->of.id;
  }
  return core::kHostPool;
}

void PageStore::EndPromise(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  row.is_promised = false;
  if (std::exchange(row.is_reached, false)) Reach(part, slot);
  if (row.is_left) On(core::Freed{row.id});
}

void PageStore::Mapped(ClientPages* pages, core::plan::Unit unit) {
  Part& part = PartOf(pages);
  SchedulerOf(part).Moved(part.client->id).Mapped(unit);
}

void PageStore::Unmapped(ClientPages* pages, core::plan::PhysicalPage page) {
  Part& part = PartOf(pages);
  SchedulerOf(part).Moved(part.client->id).Unmapped(page);
}

// A copy is redundant when the unit is resident: it may make room for another client's.
void PageStore::CopiedIn(ClientPages* pages, core::plan::Unit unit, bool ok) {
  Part& part = PartOf(pages);
  room_grew_ |= stats_.waiting > 0;
  SchedulerOf(part).CopiedIn(part.client->id, unit, ok);
}

void PageStore::CopiedOut(ClientPages* pages, core::plan::Unit unit, bool ok) {
  Part& part = PartOf(pages);
  room_grew_ |= stats_.waiting > 0;
  SchedulerOf(part).Moved(part.client->id).CopiedOut(unit, ok);
}

void PageStore::MapsQueued(ClientPages* pages) {
  hooks_.send_maps(PartOf(pages).client->id);
}

void PageStore::Progressed(ClientPages* pages) {
  Part& part = PartOf(pages);
  const ClientId client = part.client->id;
  Device& device = on_[ToInt(pages->device())];
  device.advances = true;
  if (device.scheduler->HasClient(client)) device.scheduler->Moved(client);
}

void PageStore::RetryAt(ClientPages* pages, Tick at) {
  retries_.insert({at, pages});
}

void PageStore::PageGone(ClientPages* pages) {
  Part& part = PartOf(pages);
  SchedulerOf(part).PageReleased(part.client->id);
  Progressed(pages);
}

void PageStore::MakePage(ClientId client) {
  on_[ToInt(advancing_)].makes = client;
}

std::shared_ptr<core::PlanWork> PageStore::MakePlan(DeviceId device,
                                                    std::shared_ptr<core::PlanWork> work) {
  const core::TenantId owner =
      work->is_shared ? kNoUser : clients_.at(work->parts.front().client)->tenant;
  workers_->Run(owner, [this, device, work = std::move(work)] {
    work->Make();
    mailbox_->Post([this, device, work] {
      on_[ToInt(device)].scheduler->PlanMade(work);
      on_[ToInt(device)].advances = true;
    });
  });
  return nullptr;
}

// Its tables may be large.
void PageStore::Discard(std::unique_ptr<core::ScheduledClient> client) {
  workers_->Run(kNoUser,
                [client = std::shared_ptr(std::move(client))]() mutable { client.reset(); });
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

void PageStore::CountMoves(Part& part) {
  const core::PageExecutor::Stats now = ExecutorOf(part).stats();
  const core::ForesightStats calls = SchedulerOf(part).client(part.client->id).foresight().stats();
  for (core::PlannerStats* stats : {&stats_, &part.client->stats}) {
    stats->in += now.in - part.counted.in;
    stats->out += now.out - part.counted.out;
    stats->discarded += now.discarded - part.counted.discarded;
    stats->rescues += now.not_revoked - part.counted.not_revoked;
    stats->predictions_right += calls.found - part.followed.found;
    stats->predictions_wrong +=
        calls.compared - part.followed.compared - (calls.found - part.followed.found);
  }
  part.counted = now;
  part.followed = calls;
}

Tick PageStore::NextWake() const {
  Tick next = deadlines_.empty() ? core::kNever : std::get<Tick>(*deadlines_.begin());
  if (!retries_.empty()) next = std::min(next, retries_.begin()->first);
  if (evacuate_at_ > now_) next = std::min(next, evacuate_at_);
  if (stats_.waiting > 0) next = std::min(next, late_look_);
  return std::min({next, pinned_wanted_until_, pools_.NextWake()});
}

// ---- Views.

TensorId PageStore::Find(ClientId client, SlotId slot) const {
  const auto& rows = clients_.at(client)->rows;
  return ToInt(slot) < rows.size() ? rows[ToInt(slot)].id : core::kNoTensor;
}

core::TensorView PageStore::View(TensorId tensor) const {
  const auto [of, slot] = Find(tensor);
  const Client& client = *of;
  const Row& row = client.rows[ToInt(slot)];
  const ClientPages& pages = *client.parts.at(row.device).pages;
  const core::PageExecutor& executor = ExecutorOf(client.parts.at(row.device));
  const core::PageTensors::Row& placed = executor.tensors()[ToInt(slot)];
  core::TensorView view{};
  view.id = tensor;
  view.client = client.id;
  view.slot = slot;
  view.name = row.name;
  view.size = row.size;
  view.device = row.device;
  const bool is_away = placed.away || !placed.lives();
  view.residency = is_away ? core::Residency::kAway : core::Residency::kOnDevice;
  if (!is_away && row.lives) view.device_offset = pages.AddressOf(ToInt(slot));
  view.in_use = placed.pinned;
  const core::plan::UnitState& first = executor.books()[placed.units.first];
  view.dirty = first.life == core::PageState::kDirty;
  view.has_copy = first.pool != core::plan::kNoPool;
  if (view.has_copy) view.away = pools_.Of(row.device)[first.pool]->of.id;
  return view;
}

core::Explanation PageStore::Explain(TensorId tensor, Tick now) const {
  core::Explanation why;
  why.tensor = View(tensor);
  const ClientId id = why.tensor.client;
  const SlotId slot = why.tensor.slot;
  const Client& client = *clients_.at(id);
  const Row& row = client.rows[ToInt(slot)];
  const core::ScheduledClient& scheduled = on_[ToInt(row.device)].scheduler->client(id);
  ExplainOnPages(scheduled, ToInt(slot), row.past, now - client.attached - client.stats.waited,
                 &why);
  why.away_offset = client.parts.at(row.device)
                        .pages->CopyOffset(scheduled.executor().tensors()[ToInt(slot)].units.first);
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
  view.budgets = quotas_.BudgetsOf(id);
  view.weight = quotas_.BudgetsOf(client.tenant).weight;
  view.priority = quotas_.BudgetsOf(client.tenant).priority;
  view.tensors = client.tensors;
  view.pinned = client.pinned;
  view.waiting = client.stats.waiting;
  for (const auto& [device, part] : client.parts) {
    const core::PageBooks& books = ExecutorOf(part).books();
    view.device_held += part.pages->page() * part.pages->made();
    view.in_use += ExecutorOf(part).tensors().held();
    const core::plan::CopyPools& pools = books.copies().pools();
    const Bytes host = pools.used(part.pages->host());
    view.host_used += host;
    view.others_used += pools.used() - host;
  }
  view.device_used = client.live - client.away;
  return view;
}

core::TenantView PageStore::View(core::TenantId tenant, DeviceId device) const {
  return {.held = HeldBy(tenant, device), .guarantee = GuaranteeOf(tenant, device)};
}

Bytes PageStore::HeldBy(core::TenantId tenant, DeviceId device) const {
  Bytes held;
  for (const auto& [id, client] : clients_) {
    const auto part = client->parts.find(device);
    if (client->tenant == tenant && part != client->parts.end())
      held += part->second.pages->page() * part->second.pages->made();
  }
  return held;
}

Bytes PageStore::GuaranteeOf(core::TenantId tenant, DeviceId device) const {
  const Device& on = on_[ToInt(device)];
  const auto pages = static_cast<uint32_t>(limits_[ToInt(device)].count() / on.page.count());
  return on.page * (quotas_.IsPresent(tenant) ? on.scheduler->tenants().GuaranteeOf(tenant, pages)
                                              : quotas_.PagesOf(tenant, device).guarantee);
}

Bytes PageStore::Guaranteed(DeviceId device, core::TenantId asker) const {
  Bytes guaranteed;
  for (const core::TenantId tenant : quotas_.Others(asker))
    guaranteed += std::min(HeldBy(tenant, device), GuaranteeOf(tenant, device));
  return guaranteed;
}

Bytes PageStore::GuaranteedToOthers(DeviceId device, core::TenantId asker) const {
  Bytes guaranteed;
  for (const core::TenantId tenant : quotas_.Others(asker))
    guaranteed += GuaranteeOf(tenant, device);
  return guaranteed;
}

std::vector<Holder> PageStore::HoldersOf(DeviceId device) const {
  std::vector<Holder> holders;
  for (const auto& [id, client] : clients_) {
    const auto part = client->parts.find(device);
    if (client->gone || part == client->parts.end()) continue;
    const Bytes page = part->second.pages->page();
    holders.push_back({.client = id,
                       .tenant = client->tenant,
                       .held = page * part->second.pages->made(),
                       .in_use = page * core::PagesInUse(ExecutorOf(part->second).books())});
  }
  return holders;
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
    if (!client->gone)
      tier.used += pages.page() * ExecutorOf(part->second).books().totals().occupied().pages();
  }
  tier.used = std::min(tier.used, tier.held);
  return tier;
}

core::TierView PageStore::HostTier() const {
  Bytes blocks;
  for (const auto& [id, client] : clients_) blocks += client->pinned;
  const PoolMemory& memory = pools_.host().memory();
  return {.capacity = options_.host_capacity,
          .held = memory.made() + quotas_.copies().pinned(),
          .used = memory.used() + blocks};
}

core::Status PageStore::MayPin(ClientId client, Bytes block, Bytes slab,
                               const core::CopyQuota::Idle& without) const {
  const core::CopyQuota& copies = quotas_.copies();
  const PoolMemory& host = pools_.host().memory();
  const Bytes made = std::max(host.made(), host.used() + pools_.host().reserved());
  if (copies.MayPin(client, block, slab, without, made)) return core::Ok();
  std::vector<Holder> holders;
  for (const auto& [id, of] : clients_)
    holders.push_back({.client = id, .tenant = of->tenant, .held = of->pinned});
  const core::TenantId tenant = clients_.at(client)->tenant;
  std::string text = "pinned memory is exhausted: no room for " + core::SizeText(block) +
                     " within client " + std::to_string(ToInt(client)) + "'s host budget of " +
                     core::SizeText(quotas_.BudgetsOf(client).host) + ", its user's of " +
                     core::SizeText(quotas_.BudgetsOf(tenant).host) + " and the host pool of " +
                     core::SizeText(options_.host_capacity) + ", which holds " +
                     core::SizeText(host.used()) + " of tensors and " +
                     core::SizeText(copies.pinned()) +
                     " of pinned blocks; holders:" + DescribeHolders(tenant, holders, " pinned");
  if (copies.IsKeptFrom(client, block)) text += HostHolder();
  return Error{ErrorCode::kOutOfMemory,
               text + " free pinned blocks or tensors, or raise the host budgets"};
}

std::string PageStore::HostHolder() const {
  return " the rest of the host pool of " + core::SizeText(options_.host_capacity) +
         " is kept for users who hold little of it, and user " +
         std::to_string(ToInt(quotas_.copies().LargestHolder())) +
         " holds the most (limits.single_user of the configuration keeps nothing);";
}

const core::PlannerStats& PageStore::StatsOf(ClientId client) const {
  return clients_.at(client)->stats;
}

void PageStore::CheckInvariants() const {
  for (const auto& [pages, part] : parts_) {
    if (!part->client->gone) core::CheckBooks(ExecutorOf(*part).books());
  }
}

}  // namespace ravenstore::daemon
