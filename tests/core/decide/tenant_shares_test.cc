#include "core/decide/tenant_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/core/plan/seeds.h"

namespace ravenstore::core::decide {
namespace {

using Shares = std::vector<uint32_t>;

TEST(TenantSharesTest, ATenantsClientsShareWhatItMayHold) {
  const std::vector<TenantClient> clients{{{.alive = 9}, 0}, {{.alive = 9}, 0}, {{.alive = 2}, 1}};
  EXPECT_EQ(ShareByTenant(clients, std::vector<TenantPages>{{.most = 6}, {}}, 20),
            Shares({3, 3, 14}));
}

TEST(TenantSharesTest, AClientHasWhatOthersOfItsTenantDoNotNeed) {
  const std::vector<TenantClient> clients{{{.alive = 1}, 0}, {{.alive = 9}, 0}};
  EXPECT_EQ(ShareByTenant(clients, std::vector<TenantPages>{{.most = 6}}, 20), Shares({1, 5}));
}

TEST(TenantSharesTest, MoreClientsDoNotMeanMorePages) {
  const std::vector<TenantClient> clients{
      {{.alive = 20}, 0}, {{.alive = 20}, 1}, {{.alive = 20}, 1}, {{.alive = 20}, 1}};
  EXPECT_EQ(ShareByTenant(clients, std::vector<TenantPages>{{}, {}}, 24), Shares({12, 4, 4, 4}));
}

TEST(TenantSharesTest, AGuaranteeIsOfAllClientsTogether) {
  const std::vector<TenantClient> clients{
      {{.alive = 4}, 0}, {{.alive = 4}, 0}, {{.expected = 20}, 1}};
  EXPECT_EQ(ShareByTenant(clients, std::vector<TenantPages>{{.guarantee = 6}, {.priority = 1}}, 20),
            Shares({3, 3, 14}));
}

TEST(TenantSharesTest, WeightsAreOfTenants) {
  const std::vector<TenantClient> clients{
      {{.alive = 90}, 0}, {{.alive = 90}, 1}, {{.alive = 90}, 1}};
  EXPECT_EQ(ShareByTenant(clients, std::vector<TenantPages>{{.weight = 1}, {.weight = 3}}, 40),
            Shares({10, 15, 15}));
}

TEST(TenantSharesTest, OneCallThatWaitsIsServedOfAllTenants) {
  const PageDemand waits{.in_use = 2, .waits_for = 6};
  const std::vector<TenantClient> clients{{waits, 0}, {waits, 1}, {waits, 1}};
  EXPECT_EQ(ShareByTenant(clients, std::vector<TenantPages>{{}, {}}, 10), Shares({6, 2, 2}));
  EXPECT_EQ(ShareByTenant(clients, std::vector<TenantPages>{{}, {.priority = 1}}, 10),
            Shares({2, 6, 2}));
}

// Each of a tenant of its own, or all of one.
Shares ShareOf(const std::vector<PageDemand>& demands, uint32_t pages) {
  std::vector<TenantClient> own;
  std::vector<TenantClient> common;
  for (const PageDemand& demand : demands) {
    own.push_back({demand, own.size()});
    common.push_back({demand, 0});
  }
  const Shares shares = ShareByTenant(own, std::vector<TenantPages>(own.size()), pages);
  EXPECT_EQ(shares, ShareByTenant(common, std::vector<TenantPages>(1), pages));
  return shares;
}

TEST(TenantSharesTest, OnlyTheFirstCallThatWaitsIsServed) {
  const PageDemand waits{.in_use = 2, .waits_for = 8};
  EXPECT_EQ(ShareOf({{.in_use = 2}, waits, waits}, 12), (Shares{2, 8, 2}));
}

TEST(TenantSharesTest, ACallThatFitsIsServedBeforeTheFirst) {
  EXPECT_EQ(ShareOf({{.waits_for = 10}, {.in_use = 8, .waits_for = 10}}, 14), (Shares{4, 10}));
  EXPECT_EQ(ShareOf({{.waits_for = 10}, {.in_use = 8, .waits_for = 15}}, 14), (Shares{6, 8}));
}

TEST(TenantSharesTest, ACallThatItsTenantMayNotHoldIsNotServedFirst) {
  const std::vector<TenantClient> clients{
      {{.in_use = 4}, 0}, {{.waits_for = 4}, 0}, {{.waits_for = 5}, 1}};
  EXPECT_EQ(ShareByTenant(clients, std::vector<TenantPages>{{.most = 7}, {}}, 10),
            Shares({4, 1, 5}));
  EXPECT_EQ(ShareByTenant(clients, std::vector<TenantPages>{{.most = 8}, {}}, 10),
            Shares({4, 4, 2}));
}

TEST(TenantSharesTest, ACallThatNeedsWhatIsGuaranteedToOthersIsNotServedFirst) {
  const std::vector<TenantClient> clients{{{.waits_for = 8}, 0}, {{.waits_for = 5}, 1}};
  EXPECT_EQ(ShareByTenant(clients, std::vector<TenantPages>{{}, {.guarantee = 3}}, 10),
            Shares({3, 7}));
}

TEST(TenantSharesTest, ACallThatNeedsWhatStaysFreeForOthersIsNotServedFirst) {
  const std::vector<TenantClient> clients{{{.waits_for = 9}, 0}, {{.waits_for = 8}, 1}};
  const std::vector<TenantPages> tenants(2);
  EXPECT_EQ(ShareByTenant(clients, tenants, 10), Shares({9, 1}));
  EXPECT_EQ(ShareByTenant(clients, tenants, 10, {.all = 2, .for_next = 2}), Shares({0, 8}));
  // A guarantee may use it.
  const std::vector<TenantPages> guaranteed{{.guarantee = 9}, {}};
  EXPECT_EQ(ShareByTenant(clients, guaranteed, 10, {.all = 2, .for_next = 2}), Shares({9, 0}));
}

TEST(TenantSharesTest, OfWeightedTenantsTheOneWithLessForItsWeightIsServed) {
  const PageDemand waits{.in_use = 2, .waits_for = 7, .alive = 2};
  const std::vector<TenantClient> clients{{waits, 0}, {waits, 1}};
  EXPECT_EQ(ShareByTenant(clients, std::vector<TenantPages>{{}, {.weight = 3}}, 10),
            Shares({2, 8}));
}

TEST(TenantSharesTest, NoTenantHasMoreThanItMay) {
  plan::ForSeeds(300, [](plan::Random& random) {
    const auto number = [&] { return static_cast<uint32_t>(random.Below(100)); };
    std::vector<TenantPages> tenants(1 + random.Below(4));
    uint32_t most = 0;
    for (TenantPages& tenant : tenants) {
      tenant = {.most = number(),
                .guarantee = number(),
                .priority = static_cast<int>(random.Below(3)) - 1};
      if (random.Below(2) == 0) tenant.weight = 1 + number();
      most += tenant.most;
    }
    std::vector<TenantClient> clients;
    for (uint64_t i = 0; i < 1 + random.Below(8); ++i) {
      const size_t tenant = i < tenants.size() ? i : random.Below(tenants.size());
      clients.push_back({{.in_use = number(),
                          .waits_for = random.Below(2) == 0 ? number() : 0,
                          .expected = number(),
                          .alive = number(),
                          .held = number()},
                         tenant});
    }
    const auto pages = static_cast<uint32_t>(random.Below(500));
    const Shares shares = ShareByTenant(clients, tenants, pages);
    std::vector<uint32_t> sums(tenants.size());
    for (size_t i = 0; i < clients.size(); ++i) sums[clients[i].tenant] += shares[i];
    for (size_t i = 0; i < tenants.size(); ++i) EXPECT_LE(sums[i], tenants[i].most);
    EXPECT_LE(std::accumulate(sums.begin(), sums.end(), 0u), std::min(pages, most));
  });
}

}  // namespace
}  // namespace ravenstore::core::decide
