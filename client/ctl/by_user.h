// Users: what each one's clients and jobs hold together, and what they are called.
//
// Threads: any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

// Figures of jobs come from pages that their users can write, so sums stop at 2^64 - 1.
struct UserSums {
  uint64_t clients = 0;
  uint64_t jobs = 0;     // under the interceptor
  uint64_t waiting = 0;  // requests of the clients
  // Bytes of the clients' tensors; what is in use is on devices, and counts there as well.
  uint64_t device = 0;
  uint64_t in_use = 0;
  uint64_t host = 0;
  uint64_t pinned = 0;   // blocks of pinned memory
  uint64_t of_jobs = 0;  // what the jobs hold of devices

  void Add(const UserSums& other);
};

std::map<uid_t, UserSums> ByUser(const std::vector<proto::ClientInfo>& clients,
                                 const std::vector<proto::LegacyJob>& jobs);

// A user's name, asked of the system, or the number of one that has none here.
std::string UserName(uid_t uid);

}  // namespace ravenstore::client::ctl
