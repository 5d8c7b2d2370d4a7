#include "daemon/page_store.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "core/check.h"
#include "core/plan/page_size.h"

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

// That a page takes on its way from one client to another (decision 0076).
constexpr auto kMakingPage = std::chrono::microseconds(200);

// A client that has released no page for that time is late: a call of another takes other pages.
constexpr auto kPatience = std::chrono::milliseconds(100);

// The size of a page of each device.
std::vector<Bytes> PagesFor(const PageStore::Options& options) {
  std::vector<Bytes> pages;
  for (const Bytes capacity : options.device_capacity)
    pages.push_back(
        options.page > Bytes{}
            ? options.page
            : core::plan::PageOfDevice(capacity, options.host_capacity, options.usual_budget));
  return pages;
}

Bytes LargestOf(const std::vector<Bytes>& pages) {
  return pages.empty() ? Bytes{} : *std::max_element(pages.begin(), pages.end());
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
              .exchange = LargestOf(PagesFor(options_)),
              .transfers = options_.transfers},
             devices_, host,
             {.grow = [this](core::GrowPool action) { replies_.push_back(action); },
              .shrink = [this](core::ShrinkPool action) { replies_.push_back(action); },
              .pacer = hooks_.pacer}),
      tables_({.device_capacity = options_.device_capacity,
               .page = PagesFor(options_),
               .host_capacity = options_.host_capacity,
               .guaranteed_part = options_.guaranteed_part}),
      rooms_({options_.host_capacity, options_.device_granularity}, &tables_, &pools_,
             {.moves_to =
                  [this](ClientId client, TensorNumber tensor) {
                    return requests_.moves().WaitsOn(client, tensor);
                  },
              .reclaim = [this](core::ReclaimPinned action) { replies_.push_back(action); }}),
      views_(&tables_, &pools_, options_.host_capacity),
      pages_(&tables_, &pools_, &rooms_, &requests_, &hooks_),
      clients_({.device_capacity = options_.device_capacity,
                .arena = options_.arena,
                .checks = options_.checks},
               devices_, &tables_, &rooms_, &pools_, workers_, mailbox_, hooks_.attachment,
               &pages_),
      requests_(devices_, options_.transfers, &tables_, &rooms_, &views_,
                {.part = [this](Client& client, DeviceId device) -> Part& {
                   return clients_.PartOf(client, device);
                 },
                 .answer = [this](core::Action action) { replies_.push_back(std::move(action)); }}),
      sleepers_(&tables_, [this](ClientId client) { clients_.On(core::Trimmed{client}); }) {
  const std::vector<Bytes> sizes = PagesFor(options_);
  for (size_t i = 0; i < devices_.size(); ++i) {
    const Bytes page = sizes[i];
    const auto pages = static_cast<uint32_t>(options_.device_capacity[i].count() / page.count());
    Device& on = tables_.devices.emplace_back();
    on.page = page;
    on.limit = options_.device_capacity[i];
    on.addresses = Bytes(options_.arena[i].count() / 2).RoundDown(page);
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
  return requests_.moves().Open();
}

Bytes PageStore::LargestPage() const {
  Bytes largest;
  for (const Device& device : tables_.devices) largest = std::max(largest, device.page);
  return largest;
}

void PageStore::Apply(const core::Event& event, Tick now, core::Plan* plan) {
  tables_.now = now;
  std::visit(
      [this](const auto& one) {
        if constexpr (requires { rooms_.On(one); }) {
          rooms_.On(one);
        } else if constexpr (requires { clients_.On(one); }) {
          clients_.On(one);
        } else if constexpr (requires { requests_.On(one); }) {
          requests_.On(one);
        } else {
          On(one);
        }
      },
      event);
  std::move(replies_.begin(), replies_.end(), std::back_inserter(*plan));
  replies_.clear();
}

bool PageStore::Poll(Tick now, core::Plan* plan) {
  tables_.now = now;
  rooms_.MakeRoomInPools();
  bool busy = pools_.Poll(now);
  busy |= requests_.moves().Poll(now);
  busy |= clients_.ForgetRows();
  rooms_.WakeForRoom();
  pages_.Retry();
  if (tables_.stats.waiting > 0 && now >= late_look_) {
    late_look_ = now + kPatience;
    rooms_.Grew();
    for (Device& device : tables_.devices) device.advances = true;
  }
  const auto advances = [this] {
    return std::any_of(tables_.devices.begin(), tables_.devices.end(),
                       [](const Device& device) { return device.advances; });
  };
  busy |= advances();
  rooms_.Work(busy);
  for (Device& device : tables_.devices) RunDevice(device);
  sleepers_.Poll();
  Apply(core::TimePassed{}, now, plan);
  // A request that has failed, or moved to another device, has made room.
  return busy || rooms_.has_grown() || advances();
}

void PageStore::RunDevice(Device& device) {
  // One step may have others as its consequence.
  while (std::exchange(device.advances, false)) {
    advancing_ = DeviceId{static_cast<uint16_t>(&device - tables_.devices.data())};
    device.scheduler->Advance(tables_.now.time_since_epoch());
    // RunPart() has no effect on the list: it is of the last Advance().
    for (const ClientId id : device.scheduler->started()) {
      const auto client = tables_.clients.find(id);
      if (client != tables_.clients.end()) RunPart(client->second->parts.at(advancing_));
    }
    // It is made where the client needs it first (daemon/client_pages.h).
    if (const auto makes = std::exchange(device.makes, std::nullopt)) {
      device.scheduler->PageMade(*makes);
      tables_.Progressed(tables_.clients.at(*makes)->parts.at(advancing_));
    }
    if (!device.advances) requests_.RefuseFast(advancing_);
  }
}

void PageStore::RunPart(Part& part) {
  if (part.client->departed) return;
  core::PageScheduler& scheduler = tables_.SchedulerOf(part);
  CountMoves(part);
  if (scheduler.TakeWoken(part.client->id)) {
    while (const auto tensor = scheduler.HoldWaiting(part.client->id)) {
      tables_.Progressed(part);
      requests_.Held(part, SlotOf(*tensor));
    }
  }
  for (const SlotId slot : std::exchange(part.granted, {})) requests_.Answer(part, slot);
  for (const SlotId slot : std::exchange(part.ended_early_grants, {})) EndEarlyGrant(part, slot);
  for (const SlotId slot : std::exchange(part.refused, {})) requests_.Refused(part, slot);
  rooms_.MakeRoomForCopies(part);
}

// ---- What clients did.

void PageStore::On(const core::ClientRemoved& event) {
  Client& client = *tables_.clients.at(event.client);
  requests_.Forget(&client);
  clients_.Leave(&client);
}

bool PageStore::Forget(ClientId client) {
  if (!clients_.IsQuiet(client)) return false;
  pages_.Forget(*tables_.clients.at(client));
  clients_.Forget(client);
  return true;
}

core::Status PageStore::KeepInPlace(ClientId id, SlotId slot, Keeping keeping) {
  Client& client = *tables_.clients.at(id);
  Row& row = client.rows[ToInt(slot)];
  const bool keeps = keeping == Keeping::kBegins;
  if (row.is_kept == keeps) return core::Ok();
  Part& part = client.parts.at(row.device);
  const core::PageTensors::Row& placed = tables_.ExecutorOf(part).tensors()[ToInt(slot)];
  const bool in_use = row.is_usable() && placed.pinned;
  if (keeps && !in_use) return Error{ErrorCode::kWrongState, "the tensor is not in use"};
  row.is_kept = keeps;
  core::PageExecutor& executor = tables_.Moved(part);
  if (keeps) {
    executor.KeepInPlace(placed.units);
  } else {
    // A network card that registered the memory may have written there without a get.
    if (placed.lives() && executor.IsResident(ToInt(slot))) executor.Modify(ToInt(slot));
    executor.EndKeepInPlace(placed.units);
  }
  tables_.Progressed(part);
  return core::Ok();
}

void PageStore::On(const core::GetSeen& event) {
  const auto [client, slot] = tables_.Find(event.tensor);
  if (client == nullptr) return;
  ++client->stats.hits;
  ++tables_.stats.hits;
  Row& row = client->rows[ToInt(slot)];
  Part& part = client->parts.at(row.device);
  ++row.past.gets;
  row.past.prefetched = false;
  if (!row.is_usable() || tables_.ExecutorOf(part).tensors()[ToInt(slot)].pinned) return;
  tables_.SchedulerOf(part).Use(client->id, ToInt(slot), requests_.ClockOf(client->id));
  tables_.Progressed(part);
}

void PageStore::On(const core::PutSeen& event) {
  const auto [client, slot] = tables_.Find(event.tensor);
  if (client == nullptr || !client->rows[ToInt(slot)].is_usable()) return;
  Row& row = client->rows[ToInt(slot)];
  Part& part = client->parts.at(row.device);
  // A use that was neither read nor ended yet.
  if (!tables_.ExecutorOf(part).tensors()[ToInt(slot)].pinned)
    tables_.SchedulerOf(part).Use(client->id, ToInt(slot), requests_.ClockOf(client->id));
  const bool modified = event.writes != std::exchange(row.writes, event.writes);
  row.unneeded = event.next_use.kind == core::NextUse::Kind::kNever;
  row.past.next_use = event.next_use;
  row.past.put_at = requests_.ClockOf(client->id);
  row.past.priority = event.priority;
  tables_.Moved(part).SetRecomputes(
      ToInt(slot),
      !row.unneeded && event.recompute > core::Duration{0} &&
          event.recompute < core::BothCopies(options_.links[ToInt(row.device)], row.size));
  row.ends.push_back(tables_.SchedulerOf(part).Put(client->id, ToInt(slot), modified,
                                                   event.next_use, requests_.ClockOf(client->id),
                                                   event.priority));
  tables_.Progressed(part);
}

void PageStore::On(const core::StreamComplete& event) {
  const auto [client, slot] = tables_.Find(event.tensor);
  if (client != nullptr) Reach(client->parts.at(client->rows[ToInt(slot)].device), slot);
}

// A put's ticket is behind those of earlier puts: its stream has waited for them.
void PageStore::Reach(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  row.is_reached |= row.is_granted_early;
  if (row.is_granted_early) return;
  const size_t puts = row.ends.size() - (row.has_free() ? 1 : 0);
  if (puts == 0) {
    // After a get that failed: it was no use, and no report of it comes. If the client has begun
    // another since, the word says so when the tensor is about to leave.
    if (row.lives) {
      const core::plan::UnitSpan& units = tables_.ExecutorOf(part).tensors()[ToInt(slot)].units;
      core::PageBooks& books = tables_.Moved(part).books();
      for (uint32_t i = 0; i < units.count; ++i) books.SetContested(units[i], false);
    }
    return tables_.Progressed(part);
  }
  core::PageScheduler& scheduler = tables_.SchedulerOf(part);
  for (size_t i = 0; i < puts; ++i) scheduler.EndUse(part.client->id, row.ends[i]);
  row.ends.erase(row.ends.begin(), row.ends.begin() + static_cast<ptrdiff_t>(puts));
  requests_.moves().Reached(part.client->id, ToInt(slot));
  // Unless a get was faster.
  if (row.lives && row.unneeded && !tables_.ExecutorOf(part).tensors()[ToInt(slot)].pinned &&
      hooks_.drop(part.client->id, slot)) {
    scheduler.EndBytes(part.client->id, ToInt(slot));
    part.client->live -= row.size;
    row.lives = false;
    row.lost = true;
  }
  tables_.Progressed(part);
}

// The stream's later work may have the place now, and the memory when the stream has come there.
void PageStore::On(const core::FreeSeen& event) {
  const auto [client, slot] = tables_.Find(event.tensor);
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
  row.ends.push_back(
      tables_.SchedulerOf(part).Free(client, ToInt(slot), requests_.ClockOf(client), row.freed_on));
  tables_.Progressed(part);
}

void PageStore::On(const core::Freed& event) {
  const auto [client, slot] = tables_.Find(event.tensor);
  // The client frees what it has asked for: its own concern.
  if (client == nullptr || client->rows[ToInt(slot)].request) return;
  Row& row = client->rows[ToInt(slot)];
  row.is_left |= row.is_granted_early;
  if (row.is_granted_early) return;
  Part& part = client->parts.at(row.device);
  if (!row.has_free()) Free(part, slot);
  if (row.is_kept) RAVEN_CHECK(KeepInPlace(client->id, slot, Keeping::kEnds).ok());
  Reach(part, slot);
  part.client->SetAway(slot, false);
  if (row.lives) client->live -= row.size;
  tables_.SchedulerOf(part).EndUse(client->id, row.ends.back());
  ++client->stats.frees;
  ++tables_.stats.frees;
  replies_.push_back(core::Release{client->id, slot, row.id});
  requests_.EndRow(part, slot);
  tables_.Progressed(part);
}

void PageStore::EndEarlyGrant(Part& part, SlotId slot) {
  Row& row = part.client->rows[ToInt(slot)];
  row.is_granted_early = false;
  if (std::exchange(row.is_reached, false)) Reach(part, slot);
  if (row.is_left) On(core::Freed{row.id});
}

// ---- core::PageMaker.

void PageStore::MakePage(ClientId client) {
  tables_.On(advancing_).makes = client;
}

std::shared_ptr<core::PlanWork> PageStore::MakePlan(DeviceId device,
                                                    std::shared_ptr<core::PlanWork> work) {
  const core::TenantId owner =
      work->is_shared ? kNoUser : tables_.clients.at(work->parts.front().client)->tenant;
  workers_->Run(owner, [this, device, work = std::move(work)] {
    work->Make();
    mailbox_->Post([this, device, work] {
      tables_.On(device).scheduler->PlanMade(work);
      tables_.On(device).advances = true;
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
  Client& of = *tables_.clients.at(client);
  for (const MapOrders::Ended& one : ended) {
    const auto part = of.parts.find(one.device);
    if (part == of.parts.end()) continue;
    part->second.pages->Ended(one);
    tables_.Progressed(part->second);
  }
}

void PageStore::CountMoves(Part& part) {
  const core::PageExecutor::Stats now = tables_.ExecutorOf(part).stats();
  const core::ForesightStats calls =
      tables_.SchedulerOf(part).client(part.client->id).foresight().stats();
  for (core::PlannerStats* stats : {&tables_.stats, &part.client->stats}) {
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
  Tick next = requests_.NextWake();
  if (tables_.stats.waiting > 0) next = std::min(next, late_look_);
  return std::min(
      {next, pages_.NextWake(), rooms_.NextWake(), pools_.NextWake(), sleepers_.NextWake()});
}

}  // namespace ravenstore::daemon
