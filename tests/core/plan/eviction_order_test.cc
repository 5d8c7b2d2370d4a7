#include "core/plan/eviction_order.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ravenstore::core::plan {
namespace {

using std::chrono::microseconds;
using Candidate = EvictionOrder::Candidate;

TEST(EvictionOrderTest, TheUnitNeededLastIsFirst) {
  EvictionOrder order(4);
  EXPECT_FALSE(order.Latest());
  order.AddClean(0, 10);
  order.AddDirty(1, 30, microseconds(0), microseconds(5));
  order.AddClean(2, 20);
  EXPECT_EQ(order.Latest(), (Candidate{30, 1}));
  order.Remove(1);
  EXPECT_EQ(order.Latest(), (Candidate{20, 2}));
}

TEST(EvictionOrderTest, ADirtyUnitIsOutOnceItsCopyCanHaveEnded) {
  EvictionOrder order(2);
  order.AddDirty(0, 30, microseconds(10), microseconds(5));
  order.AddClean(1, 20);
  EXPECT_EQ(order.LatestOut(microseconds(14), microseconds(0)), (Candidate{20, 1}));
  EXPECT_EQ(order.LatestOut(microseconds(15), microseconds(0)), (Candidate{30, 0}));
  // The link is busy with other copies.
  EXPECT_EQ(order.LatestOut(microseconds(15), microseconds(11)), (Candidate{20, 1}));
}

TEST(EvictionOrderTest, AUnitComesBackWithANewNeed) {
  EvictionOrder order(1);
  order.AddDirty(0, 30, microseconds(0), microseconds(5));
  order.Remove(0);
  EXPECT_FALSE(order.Contains(0));
  EXPECT_FALSE(order.LatestOut(microseconds(9), microseconds(0)));
  order.AddClean(0, 40);
  EXPECT_EQ(order.Latest(), (Candidate{40, 0}));
  EXPECT_EQ(order.LatestOut(microseconds(9), microseconds(0)), (Candidate{40, 0}));
}

}  // namespace
}  // namespace ravenstore::core::plan
