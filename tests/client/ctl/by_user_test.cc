#include "client/ctl/by_user.h"

#include <gtest/gtest.h>

namespace ravenstore::client::ctl {
namespace {

TEST(ByUserTest, ClientsAndJobsOfAUserAreAddedUp) {
  std::vector<proto::ClientInfo> clients(3);
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i].set_uid(i < 2 ? 7 : 9);
    clients[i].set_device_bytes(100);
    clients[i].set_in_use_bytes(60);
    clients[i].set_host_bytes(10);
    clients[i].set_pinned_bytes(1);
    clients[i].set_waiting(2);
  }
  std::vector<proto::LegacyJob> jobs(1);
  jobs[0].set_uid(8);
  for (const uint64_t used : {30, 12}) jobs[0].add_devices()->set_used(used);

  const auto users = ByUser(clients, jobs);
  ASSERT_EQ(users.size(), 3u);
  const UserSums& two = users.at(7);
  EXPECT_EQ(two.clients, 2u);
  EXPECT_EQ(two.device, 200u);
  EXPECT_EQ(two.in_use, 120u);
  EXPECT_EQ(two.host, 20u);
  EXPECT_EQ(two.pinned, 2u);
  EXPECT_EQ(two.waiting, 4u);
  EXPECT_EQ(two.jobs, 0u);
  EXPECT_EQ(users.at(8).of_jobs, 42u);
  EXPECT_EQ(users.at(8).jobs, 1u);
  EXPECT_EQ(users.at(9).clients, 1u);
}

// A job's page is its user's: a wrapped sum would hide what the user's other jobs hold.
TEST(ByUserTest, SumsStopAtTheLargestNumber) {
  std::vector<proto::ClientInfo> clients(2);
  for (proto::ClientInfo& client : clients) client.set_pinned_bytes(~uint64_t{});
  std::vector<proto::LegacyJob> jobs(2);
  jobs[0].add_devices()->set_used(30);
  jobs[1].add_devices()->set_used(~uint64_t{});
  const auto users = ByUser(clients, jobs);
  EXPECT_EQ(users.at(0).of_jobs, ~uint64_t{});
  EXPECT_EQ(users.at(0).pinned, ~uint64_t{});
}

}  // namespace
}  // namespace ravenstore::client::ctl
