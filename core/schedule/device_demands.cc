#include "core/schedule/device_demands.h"

#include <algorithm>
#include <utility>

#include "core/books/page_views.h"

namespace ravenstore::core {

namespace {

// Pages of the client that other pools cannot have.
uint32_t LeastPages(const PageBooks& books) {
  const uint64_t elsewhere = books.copies().pools().PagesMost();
  const uint32_t occupied = books.totals().occupied().pages();
  return occupied > elsewhere ? static_cast<uint32_t>(occupied - elsewhere) : 0;
}

// A quarter stays free. Where less does, a plan is there before memory is short.
bool FitsWell(uint64_t peak, uint32_t pages) {
  return peak <= pages - pages / 4;
}

}  // namespace

void DeviceDemands::SetClients(std::span<ScheduledClient* const> clients) {
  parts_.clear();
  marked_.clear();
  sums_ = {};
  of_tenants_.clear();
  demands_.assign(clients.size(), {});
  ++version_;
  for (size_t i = 0; i < clients.size(); ++i) {
    Part& part = parts_[clients[i]->id()];
    part.client = clients[i];
    part.number = static_cast<uint32_t>(i);
    Mark(clients[i]->id());
  }
}

void DeviceDemands::Mark(ClientId client) {
  const auto part = parts_.find(client);
  if (part == parts_.end() || std::exchange(part->second.marked, true)) return;
  marked_.push_back(&part->second);
}

void DeviceDemands::Refresh() {
  for (Part* const part : marked_) {
    part->marked = false;
    const ScheduledClient& client = *part->client;
    const PageBooks& books = client.executor().books();
    const decide::PageDemand demand = client.Demand();
    decide::PageDemand& before = demands_[part->number];
    version_ += demand == before ? 0 : 1;
    before = demand;
    const Values now = {.in_use = PagesInUse(books),
                        .least = LeastPages(books),
                        .peak = client.peak(),
                        .lacking = demand.needed() > books.view().limits.pages ? 1U : 0U,
                        .waiting = demand.waits_for > 0 ? 1U : 0U,
                        .over_most = FitsWell(client.peak(), client.most()) ? 0U : 1U};
    of_tenants_[client.tenant()].Replace(part->values, now);
    sums_.Replace(std::exchange(part->values, now), now);
  }
  marked_.clear();
}

bool DeviceDemands::Fit(uint32_t pages) const {
  return FitsWell(sums_.peak, pages) && sums_.over_most == 0 &&
         std::all_of(of_tenants_.begin(), of_tenants_.end(), [this](const auto& tenant) {
           return FitsWell(tenant.second.peak, tenants_.Of(tenant.first).most);
         });
}

uint32_t DeviceDemands::MayHold(const ScheduledClient& client, uint32_t pages) {
  Refresh();
  const TenantId tenant = client.tenant();
  uint64_t kept = tenants_.KeptForAbsent(tenant, of_tenants_, pages);
  for (const auto& [other, values] : of_tenants_) {
    if (other != tenant)
      kept += std::max<uint64_t>(values.in_use, tenants_.GuaranteeOf(other, pages));
  }
  const uint64_t left = kept < pages ? pages - kept : 0;
  const uint64_t within = std::min<uint64_t>(left, tenants_.GuaranteeOf(tenant, pages));
  const uint64_t beyond = left - std::min<uint64_t>(left, tenants_.KeptForNext(pages));
  const uint64_t of_tenant = std::min<uint64_t>(tenants_.Of(tenant).most, std::max(within, beyond));
  const uint64_t own = of_tenants_[tenant].in_use - Of(client.id()).in_use;
  // Until the next division the shares of clients that had one plan are all of the device.
  return static_cast<uint32_t>(std::min<uint64_t>(client.executor().books().view().limits.pages,
                                                  own < of_tenant ? of_tenant - own : 0));
}

bool DeviceDemands::HasPlace(const ScheduledClient& client, const plan::UnitSpan& units,
                             uint32_t pages) {
  Refresh();
  const PageBooks& books = client.executor().books();
  decide::PageCreate create = CreateIn(books, units);
  const uint64_t others = std::min<uint64_t>(sums_.least - Of(client.id()).least, pages);
  // A client that can use copies in place needs no spare page to exchange others.
  const uint64_t spare = books.view().limits.in_place ? 1 : 0;
  create.places = spare + books.copies().pools().PagesMost() +
                  std::min<uint64_t>(tenants_.MostExceptKept(client, pages), pages - others);
  return decide::HasPlace(create);
}

void DeviceDemands::Values::Replace(const Values& before, const Values& now) {
  in_use += now.in_use - before.in_use;
  least += now.least - before.least;
  peak += now.peak - before.peak;
  lacking += now.lacking - before.lacking;
  waiting += now.waiting - before.waiting;
  over_most += now.over_most - before.over_most;
}

}  // namespace ravenstore::core
