#include "core/copy_ledger.h"

#include "core/check.h"

namespace ravenstore::core {

void CopyLedger::Attach(ClientId client, TenantId tenant) {
  tenants_.try_emplace(tenant, None());
  const bool added = clients_.try_emplace(client, Client{tenant, None()}).second;
  RAVEN_CHECK(added);
}

void CopyLedger::Detach(ClientId id) {
  const auto client = clients_.find(id);
  RAVEN_CHECK(client != clients_.end());
  ByDevice& of_tenant = tenants_.at(client->second.tenant);
  for (size_t device = 0; device < options_.devices; ++device) {
    for (size_t pool = 0; pool < options_.pools; ++pool) {
      for (size_t way = 0; way < 2; ++way) {
        const InFlight& own = client->second.flights[device][pool][way];
        of_tenant[device][pool][way].bytes -= own.bytes;
        of_tenant[device][pool][way].copies -= own.copies;
      }
    }
  }
  clients_.erase(client);
}

void CopyLedger::Begin(const Lane& lane, Way way, Bytes size) {
  const auto count = [&](ByDevice& flights) {
    InFlight& copies = flights[ToInt(lane.device)][ToInt(lane.pool)][static_cast<size_t>(way)];
    copies.bytes += size;
    ++copies.copies;
  };
  Client& client = clients_.at(lane.client);
  count(devices_);
  count(client.flights);
  count(tenants_.at(client.tenant));
}

void CopyLedger::End(const Lane& lane, Way way, Bytes size) {
  const auto count = [&](ByDevice& flights) {
    InFlight& copies = flights[ToInt(lane.device)][ToInt(lane.pool)][static_cast<size_t>(way)];
    RAVEN_CHECK(copies.copies > 0);
    copies.bytes -= size;
    --copies.copies;
  };
  count(devices_);
  const auto client = clients_.find(lane.client);
  if (client == clients_.end()) return;
  count(client->second.flights);
  count(tenants_.at(client->second.tenant));
}

bool CopyLedger::Takes(const InFlight& under_way, Bytes more) const {
  if (under_way.copies == 0) return true;
  return under_way.copies < options_.ahead.copies && under_way.bytes + more <= options_.ahead.bytes;
}

bool CopyLedger::MayDemand(const Lane& lane, Way way) const {
  const InFlight& all = Of(lane.device, lane.pool, way);
  const Limit& limit = options_.demand;
  return all.copies == 0 || (all.copies < limit.copies && all.bytes < limit.bytes) ||
         IsGuaranteed(lane, way, Bytes{0}, limit);
}

bool CopyLedger::IsGuaranteed(const Lane& lane, Way way, Bytes more, const Limit& limit) const {
  const uint64_t part = options_.guaranteed_part;
  if (part == 0) return false;
  const ByDevice& flights = tenants_.at(clients_.at(lane.client).tenant);
  const InFlight& own = flights[ToInt(lane.device)][ToInt(lane.pool)][static_cast<size_t>(way)];
  if (own.copies == 0) return true;
  return own.copies < limit.copies / part && own.bytes + more <= Bytes(limit.bytes.count() / part);
}

}  // namespace ravenstore::core
