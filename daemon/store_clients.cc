#include "daemon/store_clients.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/size_text.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::ClientId;
using core::DeviceId;
using core::ToInt;

StoreClients::StoreClients(Options options, device::Devices devices, StoreTables* tables,
                           StoreRooms* rooms, StorePools* pools, WorkerPool* workers,
                           Mailbox* mailbox, Attachments attachments, ClientPages::Owner* owner)
    : options_(std::move(options)),
      devices_(std::move(devices)),
      tables_(*tables),
      rooms_(*rooms),
      pools_(*pools),
      workers_(workers),
      mailbox_(mailbox),
      attachments_(std::move(attachments)),
      owner_(owner) {}

void StoreClients::On(const core::TenantLimits& event) {
  tables_.quotas.SetBudgets(event.tenant, event.budgets);
  LimitsChanged(event.tenant);
}

void StoreClients::On(const core::ClientAttached& event) {
  auto client = std::make_unique<Client>();
  client->id = event.client;
  client->tenant = event.tenant;
  client->attached = tables_.now;
  tables_.clients[event.client] = std::move(client);
  tables_.quotas.Attach(event.client, event.tenant, event.budgets);
  LimitsChanged(event.tenant);
}

void StoreClients::On(const core::ClientLimits& event) {
  const Client* client = tables_.FindPresent(event.client);
  if (client == nullptr) return;
  tables_.quotas.SetBudgets(event.client, event.budgets);
  LimitsChanged(client->tenant);
}

void StoreClients::On(const core::DeviceLimit& event) {
  Device& device = tables_.On(event.device);
  device.limit = std::min(event.capacity, options_.device_capacity[ToInt(event.device)]);
  device.scheduler->SetPages(static_cast<uint32_t>(device.limit.count() / device.page.count()));
  device.advances = true;
}

void StoreClients::LimitsChanged(core::TenantId tenant) {
  rooms_.LimitsChanged();
  for (uint16_t i = 0; i < tables_.devices.size(); ++i) {
    Device& device = tables_.devices[i];
    core::DeviceTenants& tenants = device.scheduler->tenants();
    if (tables_.quotas.IsPresent(tenant)) {
      tenants.Set(tenant, tables_.quotas.PagesOf(tenant, DeviceId{i}));
    } else {
      tenants.Remove(tenant);
    }
    device.advances = true;
  }
  for (const auto& [pages, part] : tables_.parts) {
    if (part->client->departed) continue;
    // What others leave is another, too.
    tables_.Progressed(*part);
    if (part->client->tenant != tenant) continue;
    const ClientId client = part->client->id;
    tables_.SchedulerOf(*part).SetMost(client, tables_.quotas.MostOf(client, pages->device()),
                                       false);
    rooms_.UpdateRoom(*part);
  }
}

// To find the reason that a job waits.
void StoreClients::LogMoves(const Part& part) const {
  const core::ScheduledClient& client =
      tables_.On(part.pages->device()).scheduler->client(part.client->id);
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

bool StoreClients::IsQuiet(ClientId client) const {
  const Client& of = *tables_.clients.at(client);
  // Memory is given back to the kernel when a client is forgotten: its rows are free by then.
  return departed_rows_.empty() &&
         std::all_of(of.parts.begin(), of.parts.end(), [&](const auto& part) {
           return part.second.pages->IsQuiet() &&
                  !tables_.On(part.first).scheduler->HasClient(client);
         });
}

void StoreClients::On(const core::Trimmed& event) {
  Client* client = tables_.FindPresent(event.client);
  if (client == nullptr) return;
  for (auto& [device, part] : client->parts) {
    tables_.SchedulerOf(part).SetMost(event.client, tables_.quotas.MostOf(event.client, device),
                                      true);
    tables_.Progressed(part);
  }
}

StoreTables::Part& StoreClients::PartOf(Client& client, DeviceId device) {
  Part& part = client.parts[device];
  if (part.pages != nullptr) return part;
  const auto [attachment, maps] = attachments_(client.id);
  std::vector<PagePool*> pools;
  for (StorePools::Member* member : pools_.Of(device)) pools.push_back(member->pool.get());
  Device& on = tables_.On(device);
  part.client = &client;
  part.pages =
      std::make_unique<ClientPages>(ClientPages::Options{.device = device,
                                                         .arena = options_.arena[ToInt(device)],
                                                         .page = on.page,
                                                         .checks = options_.checks},
                                    attachment, devices_[ToInt(device)], pools,
                                    pools_.HostOf(device), maps, workers_, mailbox_, owner_);
  tables_.parts[part.pages.get()] = &part;
  const uint32_t most = tables_.quotas.MostOf(client.id, device);
  core::PageScheduler::Client joins;
  joins.id = client.id;
  joins.tenant = client.tenant;
  joins.backend = part.pages.get();
  joins.limits = {.page = on.page, .pages = most, .pools = pools_.CopyPoolsOf(device)};
  joins.most = most;
  joins.addresses = on.addresses;
  joins.has_slots = !attachment->fixed_addresses;
  on.scheduler->Join(std::move(joins));
  part.pages->SetExecutor(&on.scheduler->client(client.id).executor());
  rooms_.Divide();
  return part;
}

bool StoreClients::ForgetRows() {
  constexpr int kRows = 4096;  // some 100 us
  if (departed_rows_.empty()) return false;
  StoreTables::Rows& rows = departed_rows_.back();
  for (int i = 0; i < kRows && !rows.empty(); ++i) {
    if (rows.back().id != core::kNoTensor) tables_.ids.Remove(rows.back().id);
    rows.pop_back();
  }
  if (rows.empty()) departed_rows_.pop_back();
  return true;
}

void StoreClients::On(const core::StepMarked& event) {
  Client* const client = tables_.FindPresent(event.client);
  if (client == nullptr) return;
  for (auto& [device, part] : client->parts) tables_.SchedulerOf(part).Step(client->id);
}

void StoreClients::Leave(Client* client) {
  client->departed = true;
  rooms_.Forget(client->id);
  for (auto& [device, part] : client->parts) {
    LogMoves(part);
    part.pages->Retire();
    tables_.SchedulerOf(part).Leave(client->id);
    tables_.Progressed(part);
  }
  if (!client->rows.empty()) departed_rows_.push_back(std::exchange(client->rows, {}));
  tables_.quotas.Detach(client->id);
  LimitsChanged(client->tenant);
}

void StoreClients::Forget(ClientId client) {
  RAVEN_CHECK(IsQuiet(client));
  for (const auto& [device, part] : tables_.clients.at(client)->parts)
    tables_.parts.erase(part.pages.get());
  tables_.clients.erase(client);
}

}  // namespace ravenstore::daemon
