#include "core/schedule/device_tenants.h"

#include <gtest/gtest.h>

#include "tests/core/schedule/schedule_world.h"

namespace ravenstore::core {
namespace {

constexpr ClientId kFirst{1};
constexpr ClientId kSecond{2};
constexpr ClientId kThird{3};
constexpr TenantId kOwner{1};
constexpr TenantId kOther{2};
constexpr Bytes kPool = GiB(1);

// Tensors of one page each, which are not in use.
void Fill(ScheduleWorld* world, ClientId id, TensorNumber first, uint32_t count) {
  for (TensorNumber i = first; i < first + count; ++i) {
    world->Create(id, i, MiB(2));
    world->Settle();
    ASSERT_FALSE(world->Waits(id, i));
    world->Put(id, i);
    world->Settle();
  }
}
uint32_t PagesOf(const ScheduleWorld& world, ClientId id) {
  return world.scheduler().client(id).executor().books().memory().pages();
}

TEST(DeviceTenantsTest, ClientsOfATenantHoldNoMoreThanItMayTogether) {
  ScheduleWorld world(16);
  world.scheduler().tenants().Set(kOwner, {.most = 6});
  world.Join(kFirst, kPool, kOwner);
  world.Settle();
  Fill(&world, kFirst, 0, 7);
  EXPECT_EQ(PagesOf(world, kFirst), 6u);
  world.Join(kSecond, kPool, kOwner);
  for (TensorNumber i = 0; i < 7; ++i) {
    Fill(&world, kSecond, i, 1);
    ASSERT_LE(PagesOf(world, kFirst) + PagesOf(world, kSecond), 6u);
  }
  EXPECT_EQ(PagesOf(world, kSecond), 3u);
  EXPECT_EQ(world.Create(kSecond, 20, MiB(14)), CallResult::kTooLarge);
  world.scheduler().tenants().Set(kOwner, {.most = 12});
  world.Settle();
  Fill(&world, kFirst, 9, 9);
  EXPECT_EQ(PagesOf(world, kFirst) + PagesOf(world, kSecond), 12u);
}

TEST(DeviceTenantsTest, CallsOfAllItsClientsCount) {
  ScheduleWorld world(16);
  world.scheduler().tenants().Set(kOwner, {.most = 6});
  world.Join(kFirst, kPool, kOwner);
  world.Join(kSecond, kPool, kOwner);
  world.Settle();
  world.Create(kFirst, 0, MiB(8));
  world.Settle();
  EXPECT_FALSE(world.Waits(kFirst, 0));
  EXPECT_EQ(world.Create(kSecond, 0, MiB(6)), CallResult::kWaits);
  world.Settle();
  EXPECT_TRUE(world.Waits(kSecond, 0));
  world.Put(kFirst, 0);
  world.Settle();
  EXPECT_FALSE(world.Waits(kSecond, 0));
}

TEST(DeviceTenantsTest, WhatIsGuaranteedIsLentAndComesBack) {
  ScheduleWorld world(16);
  world.scheduler().tenants().Set(kOwner, {.guarantee = 4});
  world.scheduler().tenants().Set(kOther, {.priority = 1});
  world.Join(kFirst, kPool, kOther);
  world.Settle();
  Fill(&world, kFirst, 0, 20);
  EXPECT_EQ(PagesOf(world, kFirst), 16u);
  world.Join(kSecond, kPool, kOwner);
  Fill(&world, kSecond, 0, 8);
  EXPECT_EQ(PagesOf(world, kSecond), 4u);
  EXPECT_EQ(PagesOf(world, kFirst), 12u);
}

TEST(DeviceTenantsTest, CallsDoNotHoldWhatIsGuaranteedToOthers) {
  ScheduleWorld world(16);
  DeviceTenants& tenants = world.scheduler().tenants();
  tenants.Set(kOwner, {.guarantee = 4});
  world.Join(kFirst, kPool, kOther);
  world.Settle();
  EXPECT_EQ(world.Create(kFirst, 0, MiB(24)), CallResult::kHeld);
  EXPECT_EQ(world.Create(kFirst, 1, MiB(2)), CallResult::kWaits);
  world.Settle();
  EXPECT_TRUE(world.Waits(kFirst, 1)) << "though its owner has no client here";
  world.Join(kSecond, kPool, kOwner);
  world.Create(kSecond, 0, MiB(8));
  world.Settle();
  EXPECT_FALSE(world.Waits(kSecond, 0));
  world.Leave(kSecond);
  tenants.Remove(kOwner);
  world.Settle();
  EXPECT_FALSE(world.Waits(kFirst, 1));
}

TEST(DeviceTenantsTest, ACallGoesOnWhenAGuaranteeEnds) {
  ScheduleWorld world(16);
  world.Join(kFirst, kPool, kOther);
  world.Settle();
  world.scheduler().tenants().Set(kOwner, {.guarantee = 4});
  EXPECT_EQ(world.Create(kFirst, 0, MiB(26)), CallResult::kWaits);
  world.Settle();
  EXPECT_TRUE(world.Waits(kFirst, 0));
  world.scheduler().tenants().Remove(kOwner);
  world.Settle();
  EXPECT_FALSE(world.Waits(kFirst, 0));
}

TEST(DeviceTenantsTest, GuaranteesBeyondTheDeviceAreReduced) {
  DeviceTenants tenants;
  tenants.Set(kOwner, {.guarantee = 12});
  tenants.Set(kOther, {.guarantee = 4});
  EXPECT_EQ(tenants.GuaranteeOf(kOwner, 16), 12u);
  EXPECT_EQ(tenants.GuaranteeOf(kOwner, 8), 6u);
  EXPECT_EQ(tenants.GuaranteeOf(kOther, 8), 2u);
  tenants.Remove(kOther);
  EXPECT_EQ(tenants.GuaranteeOf(kOwner, 8), 8u);
}

// Two pages for each tenant that has none, and two for a tenant to come.
TEST(DeviceTenantsTest, PagesStayFreeWhileOthersMayNeedThem) {
  ScheduleWorld world(128, ScheduleWorld::Plans::kImmediate, 8);
  DeviceTenants& tenants = world.scheduler().tenants();
  tenants.Set(kOther, {.guarantee = 16});
  world.Join(kFirst, kPool, kOther);
  world.Settle();
  Fill(&world, kFirst, 0, 130);
  EXPECT_EQ(PagesOf(world, kFirst), 128u) << "it is alone";
  tenants.Set(kOwner, {.guarantee = 16});
  world.Settle();
  EXPECT_EQ(PagesOf(world, kFirst), 124u);
  world.Join(kSecond, kPool, kOwner);
  Fill(&world, kSecond, 0, 2);
  EXPECT_EQ(PagesOf(world, kFirst), 124u) << "it needs no more of them";
  Fill(&world, kSecond, 2, 18);
  EXPECT_EQ(PagesOf(world, kFirst) + PagesOf(world, kSecond), 126u);
  EXPECT_GE(PagesOf(world, kSecond), 16u);
  world.Leave(kSecond);
  tenants.Remove(kOwner);
  world.Settle();
  EXPECT_EQ(PagesOf(world, kFirst), 128u);
}

TEST(DeviceTenantsTest, CallsDoNotHoldPagesThatStayFree) {
  ScheduleWorld world(128, ScheduleWorld::Plans::kImmediate, 8);
  world.scheduler().tenants().Set(kOwner, {.guarantee = 16});
  world.scheduler().tenants().Set(kOther, {.guarantee = 16});
  world.Join(kFirst, kPool, kOther);
  world.Settle();
  EXPECT_EQ(world.Create(kFirst, 0, MiB(2 * 110)), CallResult::kHeld);
  EXPECT_EQ(world.Create(kFirst, 1, MiB(2)), CallResult::kWaits);
  world.Settle();
  EXPECT_TRUE(world.Waits(kFirst, 1));
  world.Join(kSecond, kPool, kOwner);
  world.Create(kSecond, 0, MiB(2 * 16));
  world.Settle();
  EXPECT_FALSE(world.Waits(kSecond, 0));
  world.Put(kFirst, 0);
  world.Settle();
  EXPECT_FALSE(world.Waits(kFirst, 1));
}

// A client that keeps more than its share is no reason to give others of its tenant more.
TEST(DeviceTenantsTest, TheyAreNoOtherClientsOfATenantThatHasItsShares) {
  ScheduleWorld world(128, ScheduleWorld::Plans::kImmediate, 8);
  world.scheduler().tenants().Set(kOther, {.guarantee = 16});
  world.scheduler().tenants().Set(kOwner, {.guarantee = 16});
  world.Join(kFirst, kPool, kOther);
  world.Settle();
  Fill(&world, kFirst, 0, 130);
  world.Join(kThird, kPool, kOther);
  world.Create(kThird, 0, MiB(2));
  world.Advance();  // nothing that the first has to release has ended
  EXPECT_EQ(PagesOf(world, kThird), 0u);
  EXPECT_EQ(world.scheduler().client(kThird).executor().books().memory().expected(), 0u);
  world.Settle();
  EXPECT_FALSE(world.Waits(kThird, 0));
  EXPECT_EQ(PagesOf(world, kFirst) + PagesOf(world, kThird), 124u);
}

TEST(DeviceTenantsTest, SurplusGoesByWeight) {
  ScheduleWorld world(16);
  world.scheduler().tenants().Set(kOwner, {.weight = 3});
  world.scheduler().tenants().Set(kOther, {.weight = 1});
  world.Join(kFirst, kPool, kOther);
  world.Settle();
  Fill(&world, kFirst, 0, 20);
  world.Join(kSecond, kPool, kOwner);
  world.Join(kThird, kPool, kOwner);
  Fill(&world, kSecond, 0, 20);
  Fill(&world, kThird, 0, 20);
  EXPECT_EQ(PagesOf(world, kFirst), 4u);
  EXPECT_EQ(PagesOf(world, kSecond) + PagesOf(world, kThird), 12u);
}

}  // namespace
}  // namespace ravenstore::core
