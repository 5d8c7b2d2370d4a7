#include "daemon/store_tables.h"

#include <utility>

namespace ravenstore::daemon {

void StoreTables::Client::SetAway(core::SlotId slot, bool is_away) {
  Row& row = rows[core::ToInt(slot)];
  if (std::exchange(row.away, is_away) == is_away) return;
  if (is_away) {
    away += row.size;
  } else {
    away -= row.size;
  }
}

StoreTables::Client* StoreTables::FindPresent(core::ClientId id) const {
  const auto client = clients.find(id);
  return client == clients.end() || client->second->departed ? nullptr : client->second.get();
}

StoreTables::Found StoreTables::Find(core::TensorId tensor) const {
  const auto of = ids.Find(tensor);
  Client* client = of ? FindPresent(of->client) : nullptr;
  if (client == nullptr) return {};
  return {client, of->slot};
}

void StoreTables::Progressed(const Part& part) {
  Device& device = On(part.pages->device());
  device.advances = true;
  if (device.scheduler->HasClient(part.client->id)) device.scheduler->Moved(part.client->id);
}

}  // namespace ravenstore::daemon
