#include "client/ctl/by_user.h"

namespace ravenstore::client::ctl {

std::map<uid_t, UserSums> ByUser(const std::vector<proto::ClientInfo>& clients,
                                 const std::vector<proto::LegacyJob>& jobs) {
  std::map<uid_t, UserSums> users;
  for (const proto::ClientInfo& client : clients) {
    UserSums& user = users[client.uid()];
    ++user.clients;
    user.waiting += client.waiting();
    user.device += client.device_bytes();
    user.in_use += client.in_use_bytes();
    user.host += client.host_bytes();
    user.pinned += client.pinned_bytes();
  }
  for (const proto::LegacyJob& job : jobs) {
    UserSums& user = users[job.uid()];
    ++user.jobs;
    for (const proto::LegacyDevice& device : job.devices()) user.of_jobs += device.used();
  }
  return users;
}

}  // namespace ravenstore::client::ctl
