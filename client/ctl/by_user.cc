#include "client/ctl/by_user.h"

#include <pwd.h>

#include "core/saturating.h"

namespace ravenstore::client::ctl {

using core::AddSaturating;

void UserSums::Add(const UserSums& other) {
  AddSaturating(other.clients, &clients);
  AddSaturating(other.jobs, &jobs);
  AddSaturating(other.waiting, &waiting);
  AddSaturating(other.device, &device);
  AddSaturating(other.in_use, &in_use);
  AddSaturating(other.host, &host);
  AddSaturating(other.pinned, &pinned);
  AddSaturating(other.of_jobs, &of_jobs);
}

std::map<uid_t, UserSums> ByUser(const std::vector<proto::ClientInfo>& clients,
                                 const std::vector<proto::LegacyJob>& jobs) {
  std::map<uid_t, UserSums> users;
  for (const proto::ClientInfo& client : clients) {
    users[client.uid()].Add({.clients = 1,
                             .waiting = client.waiting(),
                             .device = client.device_bytes(),
                             .in_use = client.in_use_bytes(),
                             .host = client.host_bytes(),
                             .pinned = client.pinned_bytes()});
  }
  for (const proto::LegacyJob& job : jobs) {
    UserSums& user = users[job.uid()];
    ++user.jobs;
    for (const proto::LegacyDevice& device : job.devices())
      AddSaturating(device.used(), &user.of_jobs);
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
