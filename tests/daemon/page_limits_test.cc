#include "daemon/page_limits.h"

#include <gtest/gtest.h>

namespace ravenstore::daemon {
namespace {

using core::Budgets;
using core::Bytes;
using core::ClientId;
using core::DeviceId;
using core::MiB;
using core::TenantId;
using core::decide::TenantPages;

constexpr TenantId kAnn{1};
constexpr TenantId kBob{2};
constexpr ClientId kClient{1};
constexpr DeviceId kDevice{0};

class PageLimitsTest : public testing::Test {
 protected:
  PageLimits limits_{{.device_capacity = {MiB(64)},
                      .page = {MiB(2)},
                      .host_capacity = MiB(64),
                      .guaranteed_part = 8}};
};

TEST_F(PageLimitsTest, ATenantWithoutBudgetsMayHoldAllAndIsGuaranteedItsPart) {
  EXPECT_EQ(limits_.PagesOf(kAnn, kDevice), (TenantPages{.most = UINT32_MAX, .guarantee = 4}));
  limits_.Attach(kClient, kAnn, {.device = MiB(9), .host = MiB(8)});
  EXPECT_EQ(limits_.MostOf(kClient, kDevice), 4u);
  EXPECT_EQ(limits_.copies().Room(kClient), MiB(8));
}

TEST_F(PageLimitsTest, BudgetsAreRoundedDownToPagesButToOneAtLeast) {
  limits_.SetBudgets(kAnn, {.device = MiB(31),
                            .host = MiB(64),
                            .device_guarantee = MiB(7),
                            .weight = 3,
                            .priority = core::TenantPriority::kLow});
  EXPECT_EQ(limits_.PagesOf(kAnn, kDevice),
            (TenantPages{.most = 15, .guarantee = 3, .priority = -1, .weight = 3}));
  limits_.SetBudgets(kAnn, {.device = MiB(1), .host = MiB(64), .device_guarantee = Bytes{}});
  EXPECT_EQ(limits_.PagesOf(kAnn, kDevice), (TenantPages{.most = 1}));
}

TEST_F(PageLimitsTest, ATenantIsPresentWhileAClientOfItIsAttached) {
  EXPECT_FALSE(limits_.IsPresent(kAnn));
  limits_.Attach(kClient, kAnn, {.device = MiB(8), .host = MiB(8)});
  limits_.Attach(ClientId{2}, kBob, {.device = MiB(8), .host = MiB(8)});
  EXPECT_TRUE(limits_.IsPresent(kAnn));
  EXPECT_EQ(limits_.Others(kAnn), std::set{kBob});
  limits_.Detach(kClient);
  EXPECT_FALSE(limits_.IsPresent(kAnn));
}

}  // namespace
}  // namespace ravenstore::daemon
