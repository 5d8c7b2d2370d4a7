#include "core/plan/copy_pools.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace ravenstore::core::plan {
namespace {

constexpr Bytes kPage = MiB(2);

TEST(CopyPoolsTest, APoolHasRoomInPlaceOfRedundantCopies) {
  const std::vector<CopyPool> pools{{.capacity = kPage}, {.capacity = kPage * 3}};
  CopyPools copies(pools, kPage);
  EXPECT_EQ(copies.PagesMost(), 4u);
  EXPECT_TRUE(copies.CanCopyOut(0, kPage));
  copies.Add(0, kPage);
  EXPECT_TRUE(copies.CanCopyOut(1, kPage));
  copies.AddRedundant(0, kPage);  // its page is resident
  EXPECT_TRUE(copies.CanCopyOut(0, kPage));
  EXPECT_FALSE(copies.CanCopyAhead(0, kPage));
  EXPECT_TRUE(copies.CanCopyOut(0, kPage));
  copies.RemoveRedundant(0, kPage);
  copies.Add(1, kPage * 3);
  EXPECT_FALSE(copies.CanCopyOut(0, kPage));
  EXPECT_FALSE(copies.CanCopyOut(1, kPage));
  EXPECT_EQ(copies.used(), kPage * 4);
  copies.Remove(1, kPage);
  EXPECT_TRUE(copies.CanCopyOut(1, kPage));
}

TEST(CopyPoolsTest, SmallUnitsHaveTheLastRoom) {
  const std::vector<CopyPool> pools{{.capacity = kPage}};
  CopyPools copies(pools, kPage);
  copies.Add(0, kPage - KiB(16));
  EXPECT_FALSE(copies.CanCopyOut(0, KiB(32)));
  EXPECT_TRUE(copies.CanCopyOut(0, KiB(16)));
  EXPECT_TRUE(copies.CanCopyAhead(0, KiB(16)));
}

TEST(CopyPoolsTest, TheKeptRoomIsForExchangesAlone) {
  std::vector<CopyPool> pools{{.capacity = kPage * 2, .kept = kPage}};
  CopyPools copies(pools, kPage);
  EXPECT_TRUE(copies.CanLeave(0, kPage));
  EXPECT_TRUE(copies.CanDrop(0, kPage));
  copies.Add(0, kPage);
  EXPECT_FALSE(copies.CanLeave(kPage));
  EXPECT_FALSE(copies.CanDrop(0, kPage));
  EXPECT_FALSE(copies.CanCopyAhead(0, kPage));
  pools[0].exchanges = true;
  EXPECT_TRUE(copies.CanLeave(kPage));
  EXPECT_TRUE(copies.CanDrop(0, kPage));
  EXPECT_FALSE(copies.CanCopyAhead(0, kPage));
}

// Its limit was lowered: a unit that is dropped takes no more of it.
TEST(CopyPoolsTest, UnitsAreDroppedWhereNothingIsKeptThoughThePoolIsFull) {
  const std::vector<CopyPool> pools{{.capacity = kPage}};
  CopyPools copies(pools, kPage);
  copies.Add(0, kPage * 2);
  EXPECT_FALSE(copies.CanLeave(0, kPage));
  EXPECT_TRUE(copies.CanDrop(0, kPage));
}

TEST(CopyPoolsTest, WhereAnotherPoolHasRoomNoExchangeKeepsPagesFromBeingCreated) {
  std::vector<CopyPool> pools{{.capacity = kPage}, {.capacity = kPage}};
  CopyPools copies(pools, kPage);
  copies.Add(0, kPage);
  pools[0].may_create = false;
  EXPECT_TRUE(copies.MayCreate());
  copies.Add(1, kPage);
  EXPECT_FALSE(copies.MayCreate());
  pools[0].may_create = true;
  EXPECT_TRUE(copies.MayCreate()) << "no exchange is under way";
}

TEST(CopyPoolsTest, APoolThatShrankHasNoRoomBeforeCopiesBeyondItHaveLeft) {
  std::vector<CopyPool> pools{{.capacity = kPage * 4}};
  CopyPools copies(pools, kPage);
  copies.Add(0, kPage * 4);
  copies.AddRedundant(0, kPage * 2);
  EXPECT_TRUE(copies.CanCopyOut(0, kPage));
  pools[0].capacity = kPage * 2;
  EXPECT_FALSE(copies.CanCopyOut(0, kPage));  // the other two copies fill it
  EXPECT_FALSE(copies.HasRoom(0, Bytes(1)));
  copies.Remove(0, kPage);
  EXPECT_TRUE(copies.CanCopyOut(0, kPage));
  EXPECT_FALSE(copies.CanCopyAhead(0, kPage));
}

TEST(CopyPoolsTest, ACopyTakesTheTimeOfItsBytesAndOfEachCopy) {
  const CopyPool pool{.in_rate = 2e9, .out_rate = 1e9, .per_copy = std::chrono::microseconds(3)};
  EXPECT_EQ(pool.OutOf(Bytes(1000)), std::chrono::microseconds(4));
  EXPECT_EQ(pool.InOf(Bytes(2000)), std::chrono::microseconds(4));
}

}  // namespace
}  // namespace ravenstore::core::plan
