#include "client/ctl/by_user.h"

#include <pwd.h>

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

std::string UserName(uid_t uid) {
  std::vector<char> buffer(size_t{1} << 14);
  passwd entry{};
  passwd* found = nullptr;
  const bool known =
      getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr;
  return known ? entry.pw_name : std::to_string(uid);
}

}  // namespace ravenstore::client::ctl
