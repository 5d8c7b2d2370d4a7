#include "core/plan/eviction_order.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ravenstore::core::plan {
namespace {

using std::chrono::microseconds;
using Candidate = EvictionOrder::Candidate;

EvictionRank At(Position need, Priority priority = Priority::kNormal) {
  return {LeavingClass(priority), need};
}

TEST(EvictionOrderTest, TheUnitNeededLastIsFirst) {
  EvictionOrder order(4);
  EXPECT_FALSE(order.Latest());
  order.AddClean(0, At(10));
  order.AddDirty(1, At(30), microseconds(0), microseconds(5));
  order.AddClean(2, At(20));
  EXPECT_EQ(order.Latest(), (Candidate{At(30), 1}));
  order.Remove(1);
  EXPECT_EQ(order.Latest(), (Candidate{At(20), 2}));
}

TEST(EvictionOrderTest, ADirtyUnitIsOutOnceItsCopyCanHaveEnded) {
  EvictionOrder order(2);
  order.AddDirty(0, At(30), microseconds(10), microseconds(5));
  order.AddClean(1, At(20));
  EXPECT_EQ(order.LatestOut(microseconds(14), microseconds(0)), (Candidate{At(20), 1}));
  EXPECT_EQ(order.LatestOut(microseconds(15), microseconds(0)), (Candidate{At(30), 0}));
  // The link is busy with other copies.
  EXPECT_EQ(order.LatestOut(microseconds(15), microseconds(11)), (Candidate{At(20), 1}));
}

TEST(EvictionOrderTest, AUnitComesBackWithANewNeed) {
  EvictionOrder order(1);
  order.AddDirty(0, At(30), microseconds(0), microseconds(5));
  order.Remove(0);
  EXPECT_FALSE(order.Contains(0));
  EXPECT_FALSE(order.LatestOut(microseconds(9), microseconds(0)));
  order.AddClean(0, At(40));
  EXPECT_EQ(order.Latest(), (Candidate{At(40), 0}));
  EXPECT_EQ(order.LatestOut(microseconds(9), microseconds(0)), (Candidate{At(40), 0}));
}

TEST(EvictionOrderTest, ALowerPriorityLeavesFirst) {
  EvictionOrder order(4);
  order.AddClean(0, At(40, Priority::kHigh));
  order.AddClean(1, At(20));
  order.AddDirty(2, At(10, Priority::kLow), microseconds(0), microseconds(5));
  EXPECT_EQ(order.Latest()->unit, 2u);
  EXPECT_EQ(order.LatestOut(microseconds(1), microseconds(0))->unit, 1u);
  EXPECT_EQ(order.LatestOut(microseconds(5), microseconds(0))->unit, 2u);
  order.Remove(2);
  EXPECT_EQ(order.Latest()->unit, 1u);
  order.Remove(1);
  EXPECT_EQ(order.Latest()->unit, 0u);
}

}  // namespace
}  // namespace ravenstore::core::plan
