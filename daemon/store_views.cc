#include "daemon/store_views.h"

#include <algorithm>

#include "core/books/page_views.h"
#include "core/size_text.h"
#include "daemon/page_explanation.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::ClientId;
using core::DeviceId;
using core::Error;
using core::ErrorCode;
using core::SlotId;
using core::TensorId;
using core::Tick;
using core::ToInt;

TensorId StoreViews::Find(ClientId client, SlotId slot) const {
  const auto& rows = tables_.clients.at(client)->rows;
  return ToInt(slot) < rows.size() ? rows[ToInt(slot)].id : core::kNoTensor;
}

core::TensorView StoreViews::View(TensorId tensor) const {
  const auto [of, slot] = tables_.Find(tensor);
  const StoreTables::Client& client = *of;
  const StoreTables::Row& row = client.rows[ToInt(slot)];
  const ClientPages& pages = *client.parts.at(row.device).pages;
  const core::PageExecutor& executor = tables_.ExecutorOf(client.parts.at(row.device));
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

StoreViews::Pages StoreViews::PagesOf(TensorId tensor) const {
  const auto [client, slot] = tables_.Find(tensor);
  const DeviceId device = client->rows[ToInt(slot)].device;
  const StoreTables::Part& part = client->parts.at(device);
  const core::PageTensors::Row& placed = tables_.ExecutorOf(part).tensors()[ToInt(slot)];
  Pages pages{.page = tables_.On(device).page, .offset = placed.offset};
  if (View(tensor).in_use) pages.at = part.pages->PagesOf(ToInt(slot));
  return pages;
}

core::Explanation StoreViews::Explain(TensorId tensor, Tick now) const {
  core::Explanation why;
  why.tensor = View(tensor);
  const ClientId id = why.tensor.client;
  const SlotId slot = why.tensor.slot;
  const StoreTables::Client& client = *tables_.clients.at(id);
  const StoreTables::Row& row = client.rows[ToInt(slot)];
  const core::ScheduledClient& scheduled = tables_.On(row.device).scheduler->client(id);
  ExplainOnPages(scheduled, ToInt(slot), row.past, now - client.attached - client.stats.waited,
                 &why);
  why.away_offset = client.parts.at(row.device)
                        .pages->CopyOffset(scheduled.executor().tensors()[ToInt(slot)].units.first);
  return why;
}

bool StoreViews::List(ClientId client, uint32_t* slot, size_t limit,
                      std::vector<core::TensorView>* views) const {
  constexpr uint32_t kLooks = 4096;
  const auto& rows = tables_.clients.at(client)->rows;
  for (uint32_t looks = 0; looks < kLooks && limit > 0; ++looks, ++*slot) {
    if (*slot >= rows.size()) return false;
    if (!rows[*slot].lives) continue;
    views->push_back(View(rows[*slot].id));
    --limit;
  }
  return *slot < rows.size();
}

core::ClientView StoreViews::View(ClientId id) const {
  const StoreTables::Client& client = *tables_.clients.at(id);
  core::ClientView view;
  view.client = id;
  view.tenant = client.tenant;
  view.budgets = tables_.quotas.BudgetsOf(id);
  view.weight = tables_.quotas.BudgetsOf(client.tenant).weight;
  view.priority = tables_.quotas.BudgetsOf(client.tenant).priority;
  view.tensors = client.tensors;
  view.pinned = client.pinned;
  view.waiting = client.stats.waiting;
  for (const auto& [device, part] : client.parts) {
    const core::PageBooks& books = tables_.ExecutorOf(part).books();
    view.device_held += part.pages->page() * part.pages->made();
    view.in_use += tables_.ExecutorOf(part).tensors().held();
    const core::plan::CopyPools& pools = books.copies().pools();
    const Bytes host = pools.used(part.pages->host());
    view.host_used += host;
    view.others_used += pools.used() - host;
  }
  view.device_used = client.live - client.away;
  return view;
}

core::TenantView StoreViews::View(core::TenantId tenant, DeviceId device) const {
  return {.held = HeldBy(tenant, device), .guarantee = GuaranteeOf(tenant, device)};
}

Bytes StoreViews::HeldBy(core::TenantId tenant, DeviceId device) const {
  Bytes held;
  for (const auto& [id, client] : tables_.clients) {
    const auto part = client->parts.find(device);
    if (client->tenant == tenant && part != client->parts.end())
      held += part->second.pages->page() * part->second.pages->made();
  }
  return held;
}

Bytes StoreViews::GuaranteeOf(core::TenantId tenant, DeviceId device) const {
  const StoreTables::Device& on = tables_.On(device);
  const auto pages = static_cast<uint32_t>(tables_.On(device).limit.count() / on.page.count());
  return on.page * (tables_.quotas.IsPresent(tenant)
                        ? on.scheduler->tenants().GuaranteeOf(tenant, pages)
                        : tables_.quotas.PagesOf(tenant, device).guarantee);
}

Bytes StoreViews::Guaranteed(DeviceId device, core::TenantId asker) const {
  Bytes guaranteed;
  for (const core::TenantId tenant : tables_.quotas.Others(asker))
    guaranteed += std::min(HeldBy(tenant, device), GuaranteeOf(tenant, device));
  return guaranteed;
}

Bytes StoreViews::GuaranteedToOthers(DeviceId device, core::TenantId asker) const {
  Bytes guaranteed;
  for (const core::TenantId tenant : tables_.quotas.Others(asker))
    guaranteed += GuaranteeOf(tenant, device);
  return guaranteed;
}

std::vector<Holder> StoreViews::HoldersOf(DeviceId device) const {
  std::vector<Holder> holders;
  for (const auto& [id, client] : tables_.clients) {
    const auto part = client->parts.find(device);
    if (client->departed || part == client->parts.end()) continue;
    const Bytes page = part->second.pages->page();
    holders.push_back(
        {.client = id,
         .tenant = client->tenant,
         .held = page * part->second.pages->made(),
         .in_use = page * core::PagesInUse(tables_.ExecutorOf(part->second).books())});
  }
  return holders;
}

std::vector<ClientId> StoreViews::Clients() const {
  std::vector<ClientId> ids;
  for (const auto& [id, client] : tables_.clients) {
    if (!client->departed) ids.push_back(id);
  }
  return ids;
}

core::TierView StoreViews::DeviceTier(DeviceId device) const {
  core::TierView tier{.capacity = tables_.On(device).limit, .held = {}, .used = {}};
  for (const auto& [id, client] : tables_.clients) {
    const auto part = client->parts.find(device);
    if (part == client->parts.end()) continue;
    const ClientPages& pages = *part->second.pages;
    tier.held += pages.page() * pages.made();
    if (!client->departed)
      tier.used +=
          pages.page() * tables_.ExecutorOf(part->second).books().totals().occupied().pages();
  }
  tier.used = std::min(tier.used, tier.held);
  return tier;
}

core::TierView StoreViews::HostTier() const {
  Bytes blocks;
  for (const auto& [id, client] : tables_.clients) blocks += client->pinned;
  const PoolMemory& memory = pools_.host().memory();
  return {.capacity = host_capacity_,
          .held = memory.made() + tables_.quotas.copies().pinned(),
          .used = memory.used() + blocks};
}

core::Status StoreViews::MayPin(ClientId client, Bytes block, Bytes slab,
                                const core::CopyQuota::Idle& without) const {
  const core::CopyQuota& copies = tables_.quotas.copies();
  const PoolMemory& host = pools_.host().memory();
  const Bytes exchange = host.used() > Bytes{} ? copies.exchange() : Bytes{};
  const Bytes made = std::max(host.made(), host.used() + pools_.host().reserved() + exchange);
  if (copies.MayPin(client, block, slab, without, made)) return core::Ok();
  std::vector<Holder> holders;
  for (const auto& [id, of] : tables_.clients)
    holders.push_back({.client = id, .tenant = of->tenant, .held = of->pinned});
  const core::TenantId tenant = tables_.clients.at(client)->tenant;
  std::string text = "pinned memory is exhausted: no room for " + core::SizeText(block) +
                     " within client " + std::to_string(ToInt(client)) + "'s host budget of " +
                     core::SizeText(tables_.quotas.BudgetsOf(client).host) + ", its user's of " +
                     core::SizeText(tables_.quotas.BudgetsOf(tenant).host) +
                     " and the host pool of " + core::SizeText(host_capacity_) + ", which holds " +
                     core::SizeText(host.used()) + " of tensors and " +
                     core::SizeText(copies.pinned()) +
                     " of pinned blocks; holders:" + DescribeHolders(tenant, holders, " pinned");
  if (copies.IsReservedForOthers(client, block)) text += HostHolder();
  return Error{ErrorCode::kOutOfMemory,
               text + " free pinned blocks or tensors, or raise the host budgets"};
}

std::string StoreViews::HostHolder() const {
  return " the rest of the host pool of " + core::SizeText(host_capacity_) +
         " is kept for users who hold little of it, and user " +
         std::to_string(ToInt(tables_.quotas.copies().LargestHolder())) +
         " holds the most (limits.single_user of the configuration keeps nothing);";
}

const core::PlannerStats& StoreViews::StatsOf(ClientId client) const {
  return tables_.clients.at(client)->stats;
}

std::string StoreViews::WhyNoRoom(const StoreTables::Part& part, Bytes size) const {
  const ClientId client = part.client->id;
  const core::TenantId tenant = part.client->tenant;
  const DeviceId device = part.pages->device();
  std::string text = "device " + std::to_string(ToInt(device)) + ": no room for " +
                     core::SizeText(size) + " within client " + std::to_string(ToInt(client)) +
                     "'s budget of " + core::SizeText(tables_.quotas.BudgetsOf(client).device) +
                     " and its tenant's of " +
                     core::SizeText(tables_.quotas.BudgetsOf(tenant).device) + ", in pages of " +
                     core::SizeText(part.pages->page()) +
                     "; holders:" + DescribeHolders(tenant, HoldersOf(device));
  if (const Bytes kept = GuaranteedToOthers(device, tenant); kept > Bytes{})
    text += " other tenants are guaranteed " + core::SizeText(kept) + ";";
  const core::CopyQuota& copies = tables_.quotas.copies();
  if (copies.Room(client) < part.pages->page() + copies.exchange()) {
    text += " of the host pool of " + core::SizeText(host_capacity_) +
            " this client has no more for copies (a page stays free, for gets);";
    if (copies.IsReservedForOthers(client, part.pages->page())) text += HostHolder();
  }
  return text + " put or free tensors, raise the budgets, or wait longer";
}

Bytes StoreViews::HarvestStuck(DeviceId device) const {
  const StorePools::Member* const member = pools_.HarvestOf(device);
  return member == nullptr ? Bytes{} : member->pool->memory().stuck();
}

std::vector<core::PoolId> StoreViews::OtherPools() const {
  std::vector<core::PoolId> ids;
  for (const auto& [id, member] : pools_.all()) {
    if (id != core::kHostPool) ids.push_back(id);
  }
  return ids;
}

void StoreViews::CheckInvariants() const {
  for (const auto& [pages, part] : tables_.parts) {
    if (!part->client->departed) core::CheckBooks(tables_.ExecutorOf(*part).books());
  }
}

}  // namespace ravenstore::daemon
