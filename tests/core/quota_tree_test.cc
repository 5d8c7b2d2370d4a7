#include "core/quota_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace ravenstore::core {
namespace {

using Limit = QuotaTree::Limit;
using Coming = QuotaTree::Coming;

constexpr TenantId kAnn{1};
constexpr TenantId kBob{2};
constexpr ClientId kA{1};
constexpr ClientId kB{2};
constexpr PoolId kDevice = PoolOf(DeviceId{0});

// One device of 64 KiB, of which an eighth each is guaranteed, and a host pool of 512 KiB.
class QuotaTreeTest : public testing::Test {
 protected:
  QuotaTreeTest() {
    for (const TenantId tenant : {kAnn, kBob})
      quota_.SetBudgets(tenant, {.device = KiB(64), .host = KiB(512)});
  }
  void Attach(ClientId client, TenantId tenant, Bytes device = KiB(64)) {
    quota_.Attach(client, tenant, {.device = device, .host = KiB(512)});
  }
  struct Claims {
    std::optional<uint32_t> weight{};
    TenantPriority priority = TenantPriority::kNormal;
    std::optional<Bytes> guarantee{};
  };
  void SetClaims(TenantId tenant, const Claims& claims) {
    quota_.SetBudgets(tenant, {.device = KiB(64),
                               .host = KiB(512),
                               .device_guarantee = claims.guarantee,
                               .weight = claims.weight,
                               .priority = claims.priority});
  }
  Bytes Due(TenantId from, ClientId to, Bytes need) {
    return quota_.Yields(from, to, kDevice, need, QuotaTree::Claim::kRight);
  }
  Bytes Room(ClientId client, Coming reclaiming = Coming::kIsHeld, uint64_t request = 100) {
    return quota_.Room(client, kDevice, request, reclaiming);
  }

  QuotaTree quota_{
      {.devices = {KiB(64)}, .host = KiB(512), .granularity = KiB(1), .guaranteed_part = 8}};
};

TEST_F(QuotaTreeTest, WhatIsHarvestedIsNobodysRoomButLowersNoLimit) {
  Attach(kA, kAnn);
  quota_.Charge(kA, kDevice, KiB(40));
  quota_.SetHarvested(kDevice, KiB(16));
  EXPECT_EQ(Room(kA), KiB(8));
  EXPECT_EQ(quota_.Most(kA, kDevice), KiB(64));
  quota_.SetLimit(kDevice, KiB(48));
  EXPECT_EQ(Room(kA), Bytes{0});
  EXPECT_EQ(quota_.Excess(kA, kDevice), Bytes{0}) << "that has to go first";
  quota_.SetHarvested(kDevice, Bytes{0});
  EXPECT_EQ(Room(kA), KiB(8));
}

TEST_F(QuotaTreeTest, TheLeastOfThreeLimitsIsTheRoomAndTheMost) {
  Attach(kA, kAnn, KiB(40));
  EXPECT_EQ(Room(kA), KiB(40));
  EXPECT_EQ(quota_.Most(kA, kDevice), KiB(40));
  quota_.Charge(kA, kDevice, KiB(4));
  EXPECT_EQ(Room(kA), KiB(36));
  quota_.SetBudgets(kAnn, {.device = KiB(30), .host = KiB(512)});
  EXPECT_EQ(Room(kA), KiB(26));
  EXPECT_EQ(quota_.Most(kA, kDevice), KiB(30));
  quota_.SetLimit(kDevice, KiB(20));
  EXPECT_EQ(Room(kA), KiB(16));
  EXPECT_EQ(quota_.Most(kA, kDevice), KiB(20));
  quota_.SetLimit(kDevice, KiB(80));  // but there are no more than 64
  EXPECT_EQ(quota_.LimitOf(kDevice), KiB(64));
}

TEST_F(QuotaTreeTest, PoolsBehindTheDevicesHaveBudgetsOfTheirOwn) {
  constexpr PoolId kFile{2};
  QuotaTree quota({.devices = {KiB(64)},
                   .host = KiB(512),
                   .others = {KiB(256)},
                   .granularity = KiB(1),
                   .guaranteed_part = 8});
  quota.SetBudgets(kAnn, {KiB(64), KiB(512), std::nullopt, {{kFile, KiB(100)}}});
  quota.Attach(kA, kAnn, {KiB(64), KiB(512)});
  EXPECT_EQ(quota.Most(kA, kFile), KiB(100));
  EXPECT_EQ(quota.Exceeded(kA, kFile, KiB(100), KiB(100)), std::nullopt);
  EXPECT_EQ(quota.Exceeded(kA, kFile, KiB(101), KiB(101)), Limit::kTenant);
  quota.SetBudgets(kAnn, {KiB(64), KiB(512)});  // of a pool that is not named: all of it
  EXPECT_EQ(quota.Most(kA, kFile), KiB(256));
  quota.Charge(kA, kFile, KiB(8));
  EXPECT_EQ(quota.Of(kAnn, kFile).held, KiB(8));
  quota.CheckInvariants();
  quota.Detach(kA);  // its bytes lie there until they are forgotten
  EXPECT_EQ(quota.Of(kAnn, kFile).held, KiB(0));
  EXPECT_EQ(quota.Of(kFile).held, KiB(8));
  quota.CheckInvariants();
  quota.Refund(kA, kFile, KiB(8));
  EXPECT_EQ(quota.Of(kFile).held, KiB(0));
}

TEST_F(QuotaTreeTest, WhatBindsIsNamedFromTheClientUp) {
  Attach(kA, kAnn, KiB(40));
  Attach(kB, kAnn, KiB(40));
  quota_.Charge(kA, kDevice, KiB(32));
  EXPECT_EQ(quota_.Binding(kA, kDevice, KiB(9)), Limit::kClient);
  EXPECT_EQ(quota_.Binding(kB, kDevice, KiB(33)), Limit::kTenant);
  EXPECT_EQ(quota_.Binding(kB, kDevice, KiB(32)), Limit::kPool);
  EXPECT_EQ(quota_.Exceeded(kB, kDevice, KiB(32), KiB(32)), std::nullopt);
  EXPECT_EQ(quota_.Exceeded(kB, kDevice, KiB(0), KiB(33)), Limit::kTenant);
}

TEST_F(QuotaTreeTest, WhatIsReclaimedIsRoomToComeWhereItCounts) {
  Attach(kA, kAnn);
  Attach(kB, kAnn);
  quota_.Charge(kA, kDevice, KiB(64));
  quota_.BeginReclaiming(kA, kDevice, KiB(8));
  EXPECT_EQ(Room(kB), KiB(0));
  EXPECT_EQ(Room(kB, Coming::kIsThere), KiB(8));
  quota_.BeginOverdue(kA, kDevice, KiB(8));
  EXPECT_EQ(Room(kB, Coming::kIsThere), KiB(0));
  quota_.EndOverdue(kA, kDevice, KiB(8));
  quota_.Refund(kA, kDevice, KiB(8));
  EXPECT_EQ(Room(kB), KiB(8));
  quota_.CheckInvariants();
}

TEST_F(QuotaTreeTest, AReservationIsForItsRequestAndThoseBefore) {
  Attach(kA, kAnn);
  Attach(kB, kAnn);
  quota_.Charge(kA, kDevice, KiB(50));
  quota_.Reserve(kA, kDevice, {.bytes = KiB(10), .request = 5});
  EXPECT_EQ(Room(kA), KiB(14));
  EXPECT_EQ(Room(kB, Coming::kIsHeld, 4), KiB(14));
  EXPECT_EQ(Room(kB, Coming::kIsHeld, 6), KiB(4));
  quota_.Reserve(kA, kDevice, {.bytes = KiB(10), .request = 5, .by_right = true});
  EXPECT_EQ(Room(kB, Coming::kIsHeld, 4), KiB(4));
  quota_.Charge(kA, kDevice, KiB(6));
  EXPECT_EQ(quota_.Reserved(kA, kDevice), KiB(4));
  quota_.Charge(kA, kDevice, KiB(6));
  EXPECT_EQ(quota_.Reserved(kA, kDevice), KiB(0));
  EXPECT_EQ(Room(kB), KiB(2));
}

TEST_F(QuotaTreeTest, WhatOthersAreGuaranteedIsLentButForAPartThatStaysFree) {
  Attach(kA, kAnn);
  EXPECT_EQ(Room(kA), KiB(64));  // alone it may have all
  Attach(kB, kBob);
  EXPECT_EQ(Room(kA), KiB(62));  // a 64th for the other one, and one for who comes next
  EXPECT_EQ(quota_.Share(kAnn, kDevice), KiB(56));
  EXPECT_FALSE(quota_.ExceedsShare(kA, kDevice, KiB(56)));
  EXPECT_TRUE(quota_.ExceedsShare(kA, kDevice, KiB(57)));
  quota_.Charge(kA, kDevice, KiB(62));
  EXPECT_EQ(quota_.Lent(kA, kDevice, KiB(0)), KiB(6));
  EXPECT_EQ(Room(kB), KiB(2));  // up to its guarantee there is nothing that it leaves free
  EXPECT_TRUE(quota_.IsWithinGuarantee(kB, kDevice, KiB(8)));
  EXPECT_FALSE(quota_.IsWithinGuarantee(kB, kDevice, KiB(8) + Bytes{1}));
  EXPECT_EQ(quota_.BeyondGuarantee(kAnn, kDevice), KiB(54));
  EXPECT_EQ(quota_.GuaranteedHeld(kBob, kDevice), KiB(8));
}

TEST_F(QuotaTreeTest, GuaranteesBeyondTheDeviceAreScaled) {
  quota_.SetBudgets(kAnn, {.device = KiB(64), .host = KiB(512), .device_guarantee = KiB(48)});
  quota_.SetBudgets(kBob, {.device = KiB(64), .host = KiB(512), .device_guarantee = KiB(48)});
  Attach(kA, kAnn);
  EXPECT_EQ(quota_.Share(kAnn, kDevice), KiB(64));
  Attach(kB, kBob);
  EXPECT_EQ(quota_.Share(kAnn, kDevice), KiB(32));
  quota_.Detach(kB);
  EXPECT_EQ(quota_.Share(kAnn, kDevice), KiB(64));
}

TEST_F(QuotaTreeTest, ExcessIsSharedInProportionToWhatIsBeyondGuarantees) {
  Attach(kA, kAnn);
  Attach(kB, kBob);
  quota_.Charge(kA, kDevice, KiB(50));  // of both 8 are guaranteed
  quota_.Charge(kB, kDevice, KiB(14));
  quota_.SetLimit(kDevice, KiB(56));
  EXPECT_EQ(quota_.Excess(kA, kDevice), KiB(7));
  EXPECT_EQ(quota_.Excess(kB, kDevice), KiB(1));
  quota_.SetBudgets(kB, {.device = KiB(10), .host = KiB(512)});
  EXPECT_EQ(quota_.Excess(kB, kDevice), KiB(4));
  quota_.Refund(kB, kDevice, KiB(6));
  quota_.Charge(kA, kDevice, KiB(6));
  EXPECT_EQ(quota_.Excess(kA, kDevice), KiB(8));
  EXPECT_EQ(quota_.Excess(kB, kDevice), Bytes{0}) << "it holds what it is guaranteed";
}

TEST_F(QuotaTreeTest, ExcessIsOfALowerPriorityFirst) {
  SetClaims(kBob, {.priority = TenantPriority::kLow});
  Attach(kA, kAnn);
  Attach(kB, kBob);
  quota_.Charge(kA, kDevice, KiB(48));
  quota_.Charge(kB, kDevice, KiB(16));
  quota_.SetLimit(kDevice, KiB(58));
  EXPECT_EQ(quota_.Excess(kA, kDevice), Bytes{0});
  EXPECT_EQ(quota_.Excess(kB, kDevice), KiB(6));
  quota_.SetLimit(kDevice, KiB(50));
  EXPECT_EQ(quota_.Excess(kA, kDevice), KiB(6));
  EXPECT_EQ(quota_.Excess(kB, kDevice), KiB(8));
}

TEST_F(QuotaTreeTest, ExcessLeavesSurplusByWeight) {
  SetClaims(kAnn, {.weight = 3});
  Attach(kA, kAnn);
  Attach(kB, kBob);
  quota_.Charge(kA, kDevice, KiB(38));  // 30 beyond its guarantee, 10 for its weight
  quota_.Charge(kB, kDevice, KiB(26));  // 18
  quota_.SetLimit(kDevice, KiB(58));
  EXPECT_EQ(quota_.Excess(kA, kDevice), Bytes{0});
  EXPECT_EQ(quota_.Excess(kB, kDevice), KiB(6));
  quota_.SetLimit(kDevice, KiB(48));  // 24 and 8 stay
  EXPECT_EQ(quota_.Excess(kA, kDevice), KiB(6));
  EXPECT_EQ(quota_.Excess(kB, kDevice), KiB(10));
}

TEST_F(QuotaTreeTest, SurplusIsDueWhileItsOwnerKeepsNoLessForItsWeight) {
  SetClaims(kAnn, {.weight = 1, .guarantee = KiB(4)});
  SetClaims(kBob, {.weight = 3, .guarantee = Bytes{0}});
  Attach(kA, kAnn);
  Attach(kB, kBob);
  quota_.Charge(kA, kDevice, KiB(32));
  quota_.Charge(kB, kDevice, KiB(32));
  EXPECT_EQ(Due(kAnn, kB, KiB(4)), KiB(28 - 12));
  EXPECT_EQ(Due(kAnn, kB, KiB(28)), KiB(28 - 20));
  EXPECT_EQ(Due(kBob, kA, KiB(1)), Bytes{0});
  EXPECT_TRUE(quota_.IsDue(kB, kDevice, KiB(28)));
  EXPECT_FALSE(quota_.IsDue(kA, kDevice, KiB(1)));
  // The other way round, too, what is due to one is all that it may take, whatever it costs.
  EXPECT_EQ(quota_.Yields(kBob, kA, kDevice, KiB(1), QuotaTree::Claim::kCost), Bytes{0});
  EXPECT_LT(quota_.RankOf(kAnn, kDevice), quota_.RankOf(kBob, kDevice));
  EXPECT_GT(quota_.RankOf(kAnn, kDevice, KiB(20)), quota_.RankOf(kBob, kDevice));
  // What another client of the tenant is to have counts as had.
  Attach(ClientId{3}, kBob);
  quota_.Reserve(ClientId{3}, kDevice, {.bytes = KiB(12), .request = 1, .by_right = true});
  EXPECT_EQ(Due(kAnn, kB, KiB(4)), KiB(28 - 16));
  quota_.CheckInvariants();
}

TEST_F(QuotaTreeTest, WithoutAWeightSurplusIsDueToGuaranteesOnly) {
  Attach(kA, kAnn);
  Attach(kB, kBob);
  quota_.Charge(kA, kDevice, KiB(48));
  EXPECT_EQ(Due(kAnn, kB, KiB(8)), KiB(40));
  EXPECT_EQ(Due(kAnn, kB, KiB(9)), Bytes{0});
  EXPECT_EQ(quota_.Yields(kAnn, kB, kDevice, KiB(9), QuotaTree::Claim::kCost), KiB(40));
  EXPECT_EQ(quota_.RankOf(kAnn, kDevice), quota_.RankOf(kBob, kDevice));
  SetClaims(TenantId{3}, {.weight = 5});  // but it has no clients
  EXPECT_FALSE(quota_.HasRanks());
  SetClaims(kAnn, {.weight = 1});
  EXPECT_TRUE(quota_.HasRanks());
  EXPECT_EQ(Due(kAnn, kB, KiB(9)), KiB(39));
}

TEST_F(QuotaTreeTest, SurplusOfALowerPriorityIsDueAndWhatIsGuaranteedNever) {
  SetClaims(kAnn, {.weight = 100, .priority = TenantPriority::kLow});
  SetClaims(kBob, {.priority = TenantPriority::kHigh});
  Attach(kA, kAnn);
  Attach(kB, kBob);
  quota_.Charge(kA, kDevice, KiB(24));
  quota_.Charge(kB, kDevice, KiB(40));
  EXPECT_EQ(Due(kAnn, kB, KiB(8)), KiB(16));
  EXPECT_EQ(Due(kBob, kA, KiB(1)), Bytes{0});
  EXPECT_LT(quota_.RankOf(kAnn, kDevice), quota_.RankOf(kBob, kDevice));
  quota_.Refund(kA, kDevice, KiB(20));
  EXPECT_EQ(Due(kAnn, kB, KiB(8)), Bytes{0});
  EXPECT_EQ(Due(kBob, kA, KiB(4)), KiB(32)) << "up to its guarantee it takes of any priority";
}

TEST_F(QuotaTreeTest, OfTheHostPoolAPartIsKeptForThoseWhoHoldLittle) {
  Attach(kA, kAnn);
  Attach(kB, kBob);
  quota_.Charge(kA, kHostPool, KiB(440));
  EXPECT_EQ(quota_.Lendable(), KiB(448));
  EXPECT_TRUE(quota_.IsWithinHostShare(kA, KiB(8)));
  EXPECT_FALSE(quota_.IsWithinHostShare(kA, KiB(9)));
  quota_.Charge(kA, kHostPool, KiB(8));
  EXPECT_TRUE(quota_.IsWithinHostShare(kB, KiB(8)));
  EXPECT_FALSE(quota_.IsWithinHostShare(kB, KiB(9)));
  EXPECT_TRUE(quota_.MayDropCopiesOf(kA, kB));
  EXPECT_FALSE(quota_.MayDropCopiesOf(kB, kA));
  EXPECT_EQ(quota_.LargestHolder(kHostPool), kAnn);
}

TEST_F(QuotaTreeTest, WhatIsTakenOfTheKeptPartIsTakenUntilThePoolIsBelowIt) {
  Attach(kA, kAnn);
  Attach(kB, kBob);
  quota_.Charge(kA, kHostPool, KiB(449));
  EXPECT_FALSE(quota_.IsKeptTaken());
  EXPECT_TRUE(quota_.TakeKept(kB, KiB(5)));
  EXPECT_TRUE(quota_.IsKeptTaken());
  EXPECT_FALSE(quota_.TakeKept(kB, KiB(4)));
  quota_.Refund(kA, kHostPool, KiB(1));
  EXPECT_FALSE(quota_.IsKeptTaken());
  EXPECT_TRUE(quota_.TakeKept(kB, KiB(4)));
}

TEST_F(QuotaTreeTest, WhatAClientThatIsGoneHoldsOfTheHostPoolStaysTakenThere) {
  Attach(kA, kAnn);
  quota_.Charge(kA, kDevice, KiB(8));
  quota_.Charge(kA, kHostPool, Bytes{700});
  quota_.SetPinned(kA, KiB(1));
  quota_.SetPinned(kAnn, KiB(4));
  quota_.Detach(kA);
  EXPECT_EQ(quota_.Of(kDevice).held, Bytes{0});
  EXPECT_EQ(quota_.Of(kAnn, kHostPool).held, KiB(4));
  EXPECT_EQ(quota_.Of(kHostPool).held, KiB(5));  // in whole extents
  quota_.Refund(kA, kHostPool, Bytes{700});
  EXPECT_EQ(quota_.Of(kHostPool).held, KiB(4));
  EXPECT_EQ(quota_.SetPinned(kAnn, Bytes{0}), KiB(4));
  EXPECT_EQ(quota_.Of(kHostPool).held, Bytes{0});
  quota_.CheckInvariants();
}

TEST_F(QuotaTreeTest, PinnedMemoryIsWithinBudgetsPoolAndShare) {
  quota_.SetBudgets(kAnn, {.device = KiB(64), .host = KiB(100)});
  Attach(kA, kAnn);
  quota_.SetPinned(kAnn, KiB(60));
  const auto may_pin = [&](Bytes slab, Bytes idle, Bytes committed) {
    return quota_.MayPin(kA, KiB(4), slab, idle, Bytes{0}, committed);
  };
  EXPECT_TRUE(may_pin(KiB(40), Bytes{0}, Bytes{0}));
  EXPECT_FALSE(may_pin(KiB(41), Bytes{0}, Bytes{0}));
  EXPECT_TRUE(may_pin(KiB(41), KiB(1), Bytes{0}));
  EXPECT_FALSE(may_pin(KiB(40), Bytes{0}, KiB(413)));
  EXPECT_TRUE(may_pin(KiB(40), Bytes{0}, KiB(412)));
}

TEST_F(QuotaTreeTest, HoldersAreOwnClientsAndOtherTenants) {
  Attach(kA, kAnn);
  Attach(kB, kBob);
  Attach(ClientId{3}, kBob);
  for (const ClientId client : {kA, kB, ClientId{3}}) quota_.Charge(client, kDevice, KiB(2));
  const auto holders = quota_.HoldersOf(kB, kDevice, &QuotaTree::Usage::held);
  EXPECT_EQ(holders.own, (std::vector{std::pair(kB, KiB(2)), std::pair(ClientId{3}, KiB(2))}));
  EXPECT_EQ(holders.others, (std::vector{std::pair(kAnn, KiB(2))}));
}

// The same by the plainest means: every question goes through all clients.
class Model {
 public:
  static constexpr Bytes kCapacity[] = {KiB(512), KiB(64), KiB(96)};  // by pool
  static constexpr uint64_t kPart = 8;
  struct Own {
    TenantId tenant{};
    Budgets budgets;
    Bytes held[3];
    Bytes reclaiming[3];
    Bytes overdue[3];
    Bytes pinned[3];
    std::map<PoolId, QuotaTree::Reservation> reservations;
  };

  static Bytes BudgetOf(const Budgets& budgets, PoolId pool) {
    return pool == kHostPool ? budgets.host : budgets.device;
  }
  template <typename Count>
  Bytes Sum(std::optional<TenantId> tenant, const Count& count) const {
    Bytes sum;
    for (const auto& [id, own] : clients) {
      if (!tenant || own.tenant == *tenant) sum += count(own);
    }
    return sum;
  }
  Bytes Held(std::optional<TenantId> tenant, PoolId pool) const {
    return Sum(tenant, [=](const Own& own) { return own.held[ToInt(pool)]; });
  }
  Bytes Reclaiming(std::optional<TenantId> tenant, PoolId pool) const {
    return Sum(tenant, [=](const Own& own) { return own.reclaiming[ToInt(pool)]; });
  }
  Bytes Pinned(TenantId tenant, PoolId pool) const {
    return Sum(tenant, [=](const Own& own) { return own.pinned[ToInt(pool)]; });
  }
  bool IsPresent(TenantId tenant) const {
    return std::any_of(clients.begin(), clients.end(),
                       [=](const auto& client) { return client.second.tenant == tenant; });
  }
  Bytes Unscaled(TenantId tenant, PoolId pool) const {
    const Bytes all = kCapacity[ToInt(pool)];
    return std::min(tenants.at(tenant).device_guarantee.value_or(Bytes(all.count() / kPart)), all);
  }
  Bytes Guarantees(PoolId pool) const {
    Bytes sum;
    for (const auto& [id, budgets] : tenants) sum += IsPresent(id) ? Unscaled(id, pool) : Bytes{};
    return sum;
  }
  Bytes Guarantee(TenantId tenant, PoolId pool) const {
    const Bytes all = Guarantees(pool);
    const Bytes own = Unscaled(tenant, pool);
    const Bytes limit = limits[ToInt(pool)];
    if (all <= limit) return own;
    const auto real = [](Bytes bytes) { return static_cast<double>(bytes.count()); };
    return Bytes(static_cast<uint64_t>(real(own) * real(limit) / real(all)));
  }
  // What is free for the tenant's loans, if `free` is.
  Bytes Unlent(TenantId tenant, PoolId pool, Bytes free) const {
    if (Guarantees(pool) <= Unscaled(tenant, pool)) return free;
    const Bytes limit = limits[ToInt(pool)];
    const Bytes each = Bytes(limit.count() / 64).RoundUp(KiB(1));
    Bytes kept = each;
    for (const auto& [id, budgets] : tenants) {
      if (id != tenant && IsPresent(id))
        kept += Minus(std::min(each, Guarantee(id, pool)), Held(id, pool));
    }
    return Minus(free, std::min(kept, Bytes(limit.count() / kPart)));
  }
  Bytes Room(ClientId id, PoolId pool, uint64_t request, bool coming) const {
    const Own& own = clients.at(id);
    const auto reserved = [&](bool own_tenant) {
      Bytes sum;
      const auto mine = own.reservations.find(pool);
      const bool guaranteed = mine != own.reservations.end() && mine->second.by_right;
      for (const auto& [other, its] : clients) {
        const auto found = its.reservations.find(pool);
        if (other == id || found == its.reservations.end()) continue;
        if (own_tenant && its.tenant != own.tenant) continue;
        const bool before = found->second.request < request;
        if (before || (found->second.by_right && !guaranteed)) sum += found->second.bytes;
      }
      return sum;
    };
    const auto left = [&](Bytes limit, Bytes held, Bytes reclaiming) {
      return Minus(limit, Minus(held, coming ? reclaiming : Bytes{0}));
    };
    const Bytes free =
        left(limits[ToInt(pool)], Held({}, pool) + reserved(false), Reclaiming({}, pool));
    const Bytes guaranteed = Minus(Guarantee(own.tenant, pool), Held(own.tenant, pool));
    return std::min({left(own.budgets.device, own.held[ToInt(pool)], own.reclaiming[ToInt(pool)]),
                     left(tenants.at(own.tenant).device, Held(own.tenant, pool) + reserved(true),
                          Reclaiming(own.tenant, pool)),
                     std::max(Unlent(own.tenant, pool, free), std::min(free, guaranteed))});
  }

  std::map<TenantId, Budgets> tenants;
  std::map<ClientId, Own> clients;
  Bytes limits[3] = {KiB(512), KiB(64), KiB(96)};
};

class RandomQuotas {
 public:
  explicit RandomQuotas(uint32_t seed) : random_(seed) {
    for (uint32_t i = 1; i <= 3; ++i) SetTenant(TenantId{i});
  }

  void Step() {
    const uint32_t dice = Below(100);
    if (dice < 3) return SetTenant(TenantId{1 + Below(3)});
    if (dice < 6) return SetLimit(PoolId{static_cast<uint16_t>(1 + Below(2))});
    if (dice < 12) return Attach();
    if (model_.clients.empty()) return;
    const auto client = std::next(model_.clients.begin(), Below(model_.clients.size()));
    if (dice < 15) return Detach(client);
    OfClient(client->first, client->second, PoolId{static_cast<uint16_t>(Below(3))}, dice);
  }

  void Check() {
    quota_.CheckInvariants();
    for (const auto& [id, own] : model_.clients) {
      for (const PoolId pool : {PoolId{1}, PoolId{2}}) CheckDevice(id, own, pool);
      const Bytes more = Amount();
      EXPECT_EQ(quota_.Exceeded(id, kHostPool, more, more).has_value(),
                own.held[0] + more > own.budgets.host ||
                    model_.Held(own.tenant, kHostPool) + more > model_.tenants.at(own.tenant).host);
      EXPECT_EQ(quota_.IsWithinHostShare(id, more),
                quota_.Of(kHostPool).held + more <= KiB(448) ||
                    model_.Held(own.tenant, kHostPool) + more <= KiB(8));
    }
  }

 private:
  void CheckDevice(ClientId id, const Model::Own& own, PoolId pool) {
    const uint64_t request = Below(20);
    for (const bool coming : {false, true}) {
      EXPECT_EQ(quota_.Room(id, pool, request, coming ? Coming::kIsThere : Coming::kIsHeld),
                model_.Room(id, pool, request, coming));
    }
    const Bytes more = Amount();
    const Bytes guarantee = model_.Guarantee(own.tenant, pool);
    const Bytes share =
        Minus(model_.limits[ToInt(pool)],
              std::min(model_.Guarantees(pool), model_.limits[ToInt(pool)]) - guarantee);
    EXPECT_EQ(quota_.Share(own.tenant, pool), share);
    EXPECT_EQ(quota_.ExceedsShare(id, pool, more),
              model_.Guarantees(pool) > model_.Unscaled(own.tenant, pool) &&
                  model_.Pinned(own.tenant, pool) + more > share);
    EXPECT_EQ(
        quota_.BeyondGuarantee(own.tenant, pool),
        Minus(model_.Held(own.tenant, pool) - model_.Reclaiming(own.tenant, pool), guarantee));
    const auto stays = [&](std::optional<TenantId> tenant) {
      return model_.Held(tenant, pool) - model_.Reclaiming(tenant, pool);
    };
    const size_t i = ToInt(pool);
    const bool within = own.held[i] - own.reclaiming[i] - own.overdue[i] <= own.budgets.device &&
                        stays(own.tenant) <= model_.tenants.at(own.tenant).device;
    const bool gives = stays({}) > model_.limits[i] && GivesOfExcess(own.tenant, pool);
    EXPECT_EQ(quota_.Excess(id, pool) == Bytes{0}, within && !gives);
    CheckYields(id, own, pool, more);
  }
  Bytes Surplus(TenantId tenant, PoolId pool) const {
    return Minus(model_.Held(tenant, pool) - model_.Reclaiming(tenant, pool),
                 model_.Guarantee(tenant, pool));
  }
  double Weight(TenantId tenant) const { return model_.tenants.at(tenant).weight.value_or(1); }
  bool AreWeighted() const {
    return std::any_of(model_.tenants.begin(), model_.tenants.end(), [&](const auto& tenant) {
      return model_.IsPresent(tenant.first) && tenant.second.weight;
    });
  }
  // Whether a tenant gives of what is beyond the pool's limit: it is among those of the lowest
  // priority that have what is beyond, and more than the least surplus for its weight that stays.
  bool GivesOfExcess(TenantId tenant, PoolId pool) const {
    const TenantPriority priority = model_.tenants.at(tenant).priority;
    Bytes excess = Minus(model_.Held({}, pool), model_.Reclaiming({}, pool));
    excess = Minus(excess, model_.limits[ToInt(pool)]);
    std::map<double, double> weights;  // by surplus for a weight, of the same priority
    for (const auto& [id, budgets] : model_.tenants) {
      const Bytes surplus = Surplus(id, pool);
      if (budgets.priority < priority) excess = Minus(excess, surplus);
      if (budgets.priority == priority)
        weights[static_cast<double>(surplus.count()) / Weight(id)] += Weight(id);
    }
    const double own = static_cast<double>(Surplus(tenant, pool).count()) / Weight(tenant);
    if (own == 0 || excess == Bytes{0}) return false;
    if (!AreWeighted()) return true;
    double above = 0;
    for (const auto& [level, weight] : weights) above += std::max(0.0, level - own) * weight;
    return above < static_cast<double>(excess.count());
  }
  void CheckYields(ClientId id, const Model::Own& own, PoolId pool, Bytes need) {
    Bytes coming;  // to its tenant's other clients
    for (const auto& [other, its] : model_.clients) {
      const auto found = its.reservations.find(pool);
      const bool counts = found != its.reservations.end() && other != id;
      if (counts && its.tenant == own.tenant) coming += found->second.bytes;
    }
    const Bytes held = model_.Held(own.tenant, pool) + need;
    const Bytes guarantee = model_.Guarantee(own.tenant, pool);
    const double level =
        static_cast<double>(Minus(held + coming, guarantee).count()) / Weight(own.tenant);
    for (const auto& [other, budgets] : model_.tenants) {
      if (other == own.tenant) continue;
      const TenantPriority priority = model_.tenants.at(own.tenant).priority;
      const Bytes all = Surplus(other, pool);
      const Bytes by_weight = Minus(all, Bytes(static_cast<uint64_t>(level * Weight(other))));
      for (const auto claim : {QuotaTree::Claim::kRight, QuotaTree::Claim::kCost}) {
        const Bytes of_equal = AreWeighted()                      ? by_weight
                               : claim == QuotaTree::Claim::kCost ? all
                                                                  : Bytes{0};
        const Bytes expected = held <= guarantee || budgets.priority < priority ? all
                               : budgets.priority > priority                    ? Bytes{0}
                                                                                : of_equal;
        EXPECT_EQ(quota_.Yields(other, id, pool, need, claim), expected);
      }
    }
  }

  uint32_t Below(size_t n) { return static_cast<uint32_t>(random_() % n); }
  Bytes Amount() { return KiB(1 + Below(12)); }
  Budgets RandomBudgets() {
    Budgets budgets{.device = KiB(8 + Below(90)), .host = KiB(16 + Below(500))};
    if (Below(2) == 0) budgets.device_guarantee = KiB(Below(60));
    if (Below(3) == 0) budgets.weight = 1 + Below(5);
    budgets.priority = Below(2) == 0 ? TenantPriority::kNormal : TenantPriority{uint8_t(Below(3))};
    return budgets;
  }
  void SetTenant(TenantId tenant) {
    quota_.SetBudgets(tenant, model_.tenants[tenant] = RandomBudgets());
  }
  void SetLimit(PoolId pool) {
    const Bytes limit = KiB(16 + Below(100));
    quota_.SetLimit(pool, limit);
    model_.limits[ToInt(pool)] = std::min(limit, Model::kCapacity[ToInt(pool)]);
  }
  void Attach() {
    const ClientId id{++last_client_};
    Model::Own& own = model_.clients[id];
    own.tenant = TenantId{1 + Below(3)};
    own.budgets = RandomBudgets();
    quota_.Attach(id, own.tenant, own.budgets);
  }
  void Detach(std::map<ClientId, Model::Own>::iterator client) {
    const auto [id, own] = *client;
    quota_.Detach(id);
    model_.clients.erase(client);
    const Bytes before = quota_.Of(kHostPool).held;
    quota_.Refund(id, kHostPool, own.held[0]);
    EXPECT_EQ(quota_.Of(kHostPool).held, before - own.held[0]);
  }
  void OfClient(ClientId id, Model::Own& own, PoolId pool, uint32_t dice) {
    const size_t i = ToInt(pool);
    Bytes more = Amount();
    if (dice < 20) return quota_.SetBudgets(id, own.budgets = RandomBudgets());
    if (dice < 55) return Charge(id, own, pool, more);
    if (dice < 70) {
      more = std::min(more, own.held[i] - own.reclaiming[i] - own.overdue[i]);
      own.held[i] -= more;
      return quota_.Refund(id, pool, more);
    }
    if (pool == kHostPool) return;
    if (dice < 78) {
      more = std::min(more, own.held[i] - own.reclaiming[i] - own.overdue[i]);
      own.reclaiming[i] += more;
      return quota_.BeginReclaiming(id, pool, more);
    }
    if (dice < 82) {
      more = std::min(more, own.reclaiming[i]);
      own.reclaiming[i] -= more;
      own.overdue[i] += more;
      return quota_.BeginOverdue(id, pool, more);
    }
    if (dice < 88) {
      more = std::min(more, own.reclaiming[i]);
      own.reclaiming[i] -= more;
      return quota_.EndReclaiming(id, pool, more);
    }
    if (dice < 94) {
      own.pinned[i] += more;
      return quota_.Pin(id, pool, more);
    }
    const QuotaTree::Reservation reservation{more, ++last_request_ % 20, Below(2) == 0};
    own.reservations[pool] = reservation;
    quota_.Reserve(id, pool, reservation);
  }
  void Charge(ClientId id, Model::Own& own, PoolId pool, Bytes more) {
    // Of a device no more than there is.
    if (pool != kHostPool)
      more = std::min(more, Model::kCapacity[ToInt(pool)] - model_.Held({}, pool));
    own.held[ToInt(pool)] += more;
    quota_.Charge(id, pool, more);
    const auto reservation = own.reservations.find(pool);
    if (reservation == own.reservations.end()) return;
    reservation->second.bytes = Minus(reservation->second.bytes, more);
    if (reservation->second.bytes == Bytes{0}) own.reservations.erase(reservation);
  }

  std::mt19937 random_;
  Model model_;
  QuotaTree quota_{{.devices = {Model::kCapacity[1], Model::kCapacity[2]},
                    .host = Model::kCapacity[0],
                    .granularity = KiB(1),
                    .guaranteed_part = Model::kPart}};
  uint32_t last_client_ = 0;
  uint64_t last_request_ = 0;
};

TEST(QuotaTreePropertyTest, AgreesWithSumsOverAllClients) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    RandomQuotas quotas(seed);
    for (int step = 0; step < 400; ++step) {
      quotas.Step();
      quotas.Check();
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace ravenstore::core
