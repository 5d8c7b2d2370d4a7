#include "core/books/copy_quota.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

using Limit = CopyQuota::Limit;

constexpr TenantId kAnn{1};
constexpr TenantId kBob{2};
constexpr ClientId kFirst{1};   // of Ann
constexpr ClientId kSecond{2};  // of Ann
constexpr ClientId kThird{3};   // of Bob
constexpr DeviceId kDevice{0};
constexpr DeviceId kOther{1};

class CopyQuotaTest : public testing::Test {
 protected:
  CopyQuotaTest() {
    quota_.SetBudgets(kAnn, {.device = {}, .host = MiB(20)});
    quota_.SetBudgets(kBob, {.device = {}, .host = MiB(64)});
    quota_.Attach(kFirst, kAnn, MiB(16));
    quota_.Attach(kSecond, kAnn, MiB(16));
    quota_.Attach(kThird, kBob, MiB(64));
  }
  CopyQuota quota_{{.capacity = MiB(64), .kept_part = 8}};
};

TEST_F(CopyQuotaTest, AClientsBudgetIsOfAllDevices) {
  EXPECT_EQ(quota_.Room(kFirst), MiB(16));
  EXPECT_FALSE(quota_.SetCopies(kFirst, kDevice, MiB(6)));
  quota_.SetCopies(kFirst, kOther, MiB(4));
  EXPECT_EQ(quota_.Room(kFirst), MiB(6));
  EXPECT_TRUE(quota_.SetCopies(kFirst, kDevice, MiB(2)));
  EXPECT_EQ(quota_.Room(kFirst), MiB(10));
}

TEST_F(CopyQuotaTest, ATenantsBudgetIsOfAllItsClients) {
  quota_.SetCopies(kFirst, kDevice, MiB(14));
  EXPECT_EQ(quota_.Room(kSecond), MiB(6));
  EXPECT_EQ(quota_.Most(kSecond), MiB(16));
  EXPECT_EQ(quota_.Room(kSecond, Limit::kClient), MiB(16));
  quota_.Detach(kFirst);
  EXPECT_EQ(quota_.Room(kSecond), MiB(16));
}

TEST_F(CopyQuotaTest, NoClientMayHaveWhatIsKept) {
  EXPECT_EQ(quota_.Most(kThird), MiB(56));
}

TEST_F(CopyQuotaTest, PinnedMemoryCounts) {
  quota_.SetPinned(kAnn, MiB(8));
  quota_.SetPinned(kFirst, MiB(5));
  EXPECT_EQ(quota_.Room(kFirst), MiB(11));
  EXPECT_EQ(quota_.Room(kSecond), MiB(12));
  EXPECT_EQ(quota_.Room(kThird), MiB(48));
  EXPECT_TRUE(quota_.MayPin(kFirst, MiB(11), MiB(12), {}, Bytes{}));
  EXPECT_FALSE(quota_.MayPin(kFirst, MiB(12), MiB(12), {}, Bytes{}));
  EXPECT_FALSE(quota_.MayPin(kFirst, MiB(2), MiB(14), {}, Bytes{}));
  EXPECT_TRUE(quota_.MayPin(kFirst, MiB(2), MiB(14), {.own = MiB(2), .others = {}}, Bytes{}));
  EXPECT_FALSE(quota_.MayPin(kFirst, MiB(2), MiB(4), {}, MiB(54)));
}

TEST(CopyQuotaExchangeTest, PinnedMemoryLeavesRoomForAnExchangeToATenantWithCopies) {
  CopyQuota quota{{.capacity = MiB(64), .exchange = MiB(2)}};
  quota.SetBudgets(kAnn, {.device = {}, .host = MiB(8)});
  quota.Attach(kFirst, kAnn, MiB(64));
  EXPECT_TRUE(quota.MayPin(kFirst, MiB(8), MiB(8), {}, Bytes{}));
  quota.SetCopies(kFirst, kDevice, MiB(1));
  EXPECT_TRUE(quota.MayPin(kFirst, MiB(5), MiB(5), {}, Bytes{}));
  EXPECT_FALSE(quota.MayPin(kFirst, MiB(6), MiB(6), {}, Bytes{}));
}

TEST_F(CopyQuotaTest, APartIsKeptForTenantsThatHoldLittle) {
  quota_.SetCopies(kThird, kDevice, MiB(56));
  EXPECT_EQ(quota_.Room(kThird), Bytes{});
  EXPECT_TRUE(quota_.IsReservedForOthers(kThird, MiB(1)));
  EXPECT_EQ(quota_.Room(kFirst), MiB(1)) << "an eighth of the kept part";
  EXPECT_EQ(quota_.LargestHolder(), kBob);
  CopyQuota alone{{.capacity = MiB(64)}};
  alone.SetBudgets(kAnn, {.device = {}, .host = MiB(64)});
  alone.Attach(kFirst, kAnn, MiB(64));
  alone.SetCopies(kFirst, kDevice, MiB(56));
  EXPECT_EQ(alone.Room(kFirst), MiB(8));
}

TEST_F(CopyQuotaTest, RedundantCopiesAreDroppedWhereThatHelps) {
  EXPECT_TRUE(quota_.MayDrop(kFirst, kFirst, Limit::kClient));
  EXPECT_FALSE(quota_.MayDrop(kSecond, kFirst, Limit::kClient));
  EXPECT_TRUE(quota_.MayDrop(kSecond, kFirst, Limit::kTenant));
  EXPECT_FALSE(quota_.MayDrop(kThird, kFirst, Limit::kTenant));
  EXPECT_FALSE(quota_.MayDrop(kThird, kFirst, Limit::kPool)) << "it holds little";
  quota_.SetCopies(kThird, kDevice, MiB(20));
  EXPECT_TRUE(quota_.MayDrop(kThird, kFirst, Limit::kPool));
}

TEST_F(CopyQuotaTest, TheAskersOwnAreDroppedFirstThenThoseOfALowerPriority) {
  constexpr TenantId kCid{3};
  constexpr ClientId kFourth{4};
  quota_.SetBudgets(kBob, {.device = {}, .host = MiB(64), .priority = TenantPriority::kLow});
  quota_.SetBudgets(kCid, {.device = {}, .host = MiB(64)});
  quota_.Attach(kFourth, kCid, MiB(64));
  EXPECT_LT(quota_.RankOf(kFirst, kFirst), quota_.RankOf(kSecond, kFirst));
  EXPECT_LT(quota_.RankOf(kSecond, kFirst), quota_.RankOf(kThird, kFirst));
  EXPECT_LT(quota_.RankOf(kThird, kFirst), quota_.RankOf(kFourth, kFirst));
  quota_.SetBudgets(kBob, {.device = {}, .host = MiB(64), .weight = 2});
  quota_.SetCopies(kThird, kDevice, MiB(6));
  quota_.SetCopies(kFourth, kDevice, MiB(4));
  EXPECT_LT(quota_.RankOf(kFourth, kFirst), quota_.RankOf(kThird, kFirst));
}

}  // namespace
}  // namespace ravenstore::core
