#include "daemon/holders.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::daemon {
namespace {

using core::ClientId;
using core::MiB;
using core::TenantId;

constexpr TenantId kOwn{1000};
constexpr TenantId kOther{1001};

TEST(HoldersTest, OwnClientsAreNamedAndOfOtherUsersTheSums) {
  const std::vector<Holder> holders{
      {ClientId{1}, kOwn, MiB(2), MiB(0)},    {ClientId{2}, kOwn, MiB(4), MiB(2)},
      {ClientId{3}, kOther, MiB(3), MiB(3)},  {ClientId{4}, kOther, MiB(5), MiB(1)},
      {ClientId{5}, TenantId{7}, MiB(0), {}},
  };
  EXPECT_EQ(DescribeHolders(kOwn, holders),
            " client 2 holds 4.0 MiB (2.0 MiB in use); client 1 holds 2.0 MiB (0 B in use);"
            " user 1001 holds 8.0 MiB;");
}

TEST(HoldersTest, FourOfEachAreNamed) {
  std::vector<Holder> holders;
  for (uint32_t i = 1; i <= 6; ++i) {
    holders.push_back({ClientId{i}, kOwn, MiB(i), {}});
    holders.push_back({ClientId{10 + i}, TenantId{i}, MiB(i), {}});
  }
  EXPECT_EQ(DescribeHolders(kOwn, holders, " pinned"),
            " client 6 holds 6.0 MiB pinned; client 5 holds 5.0 MiB pinned;"
            " client 4 holds 4.0 MiB pinned; client 3 holds 3.0 MiB pinned; 2 more of this user;"
            " user 6 holds 6.0 MiB pinned; user 5 holds 5.0 MiB pinned;"
            " user 4 holds 4.0 MiB pinned; user 3 holds 3.0 MiB pinned; 2 more users;");
}

}  // namespace
}  // namespace ravenstore::daemon
