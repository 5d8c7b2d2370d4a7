#include "core/plan/next_uses.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

namespace ravenstore::core::plan {
namespace {

using std::chrono::microseconds;

class NextUsesTest : public testing::Test {
 protected:
  static NextUse In(int us) { return {NextUse::Kind::kIn, microseconds(us), 0}; }
  static NextUse Order(int64_t order) { return {NextUse::Kind::kOrder, {}, order}; }
  // Of one page each, which tensors 0 and 1 share.
  void Put(TensorIndex tensor, const NextUse& next_use, int us) {
    uses_.Put(tensor, {tensor < 2 ? 0 : tensor * 2, 1}, next_use, microseconds(us));
  }

  NextUses uses_;
};

TEST_F(NextUsesTest, AUnitIsNeededAtTheFirstUseOfItsTensors) {
  Put(0, In(300), 100);
  Put(1, In(100), 200);
  EXPECT_EQ(uses_.Of(0), uses_.At(microseconds(300)));
  uses_.Got(1, microseconds(300));  // the other tensor's use is still announced
  EXPECT_EQ(uses_.Of(0), uses_.At(microseconds(400)));
  Put(1, In(50), 310);
  uses_.Freed(0);
  EXPECT_EQ(uses_.Of(0), uses_.At(microseconds(360)));
  uses_.Freed(1);
  EXPECT_EQ(uses_.Of(0), kNoPosition);
  EXPECT_EQ(uses_.Of(4), kNoPosition);
}

TEST_F(NextUsesTest, AnOrderIsATimeByTheRateOfPastOrders) {
  Put(3, In(1000), 0);  // times are counted
  Put(0, Order(10), 0);
  Put(1, Order(20), 0);
  uses_.Got(0, microseconds(100));
  uses_.Got(1, microseconds(200));
  Put(2, Order(40), 200);
  EXPECT_EQ(uses_.Of(4), uses_.At(microseconds(400)));
}

TEST_F(NextUsesTest, ATimeIsAnOrderByThatRate) {
  Put(0, Order(10), 0);  // orders are counted
  Put(1, Order(20), 0);
  uses_.Got(0, microseconds(100));
  uses_.Got(1, microseconds(200));
  Put(2, In(200), 200);
  Put(3, Order(39), 200);
  Put(4, Order(41), 200);
  EXPECT_GT(uses_.Of(4), uses_.Of(6));
  EXPECT_LT(uses_.Of(4), uses_.Of(8));
}

TEST_F(NextUsesTest, OneShortOrderDoesNotSetTheRate) {
  for (TensorIndex tensor = 0; tensor < 4; ++tensor) Put(tensor, Order(10 * tensor), 0);
  uses_.Got(0, microseconds(0));
  uses_.Got(1, Duration(1));
  uses_.Got(2, microseconds(100));
  uses_.Got(3, microseconds(200));
  const Position ahead = uses_.At(microseconds(300)) - uses_.At(microseconds(200));
  EXPECT_GE(ahead, 10);
  EXPECT_LE(ahead, 20);
}

TEST_F(NextUsesTest, TheLargestHintsKeepTheirOrder) {
  Put(2, {NextUse::Kind::kIn, Duration::max(), 0}, 100);
  Put(3, In(300), 100);
  Put(4, {NextUse::Kind::kIn, Duration::min(), 0}, 100);
  EXPECT_LT(uses_.Of(8), uses_.Of(6));
  EXPECT_LT(uses_.Of(6), uses_.Of(4));
  EXPECT_LT(uses_.Of(4), kNoPosition);
  EXPECT_GE(uses_.Of(8), 0);

  NextUses orders;
  constexpr int64_t kFirst = std::numeric_limits<int64_t>::min();
  orders.Put(0, {0, 1}, Order(kFirst), microseconds(0));
  orders.Put(1, {2, 1}, Order(kFirst + 1), microseconds(0));
  orders.Put(2, {4, 1}, Order(std::numeric_limits<int64_t>::max()), microseconds(0));
  EXPECT_LT(orders.Of(0), orders.Of(2));
  EXPECT_LT(orders.Of(2), orders.Of(4));
  EXPECT_LT(orders.Of(4), kNoPosition);
}

TEST_F(NextUsesTest, AllIsKnownUnlessAPutAnnouncedNothing) {
  EXPECT_TRUE(uses_.KnowsAll());
  Put(0, {}, 0);
  Put(2, {NextUse::Kind::kNever, {}, 0}, 0);
  EXPECT_FALSE(uses_.KnowsAll());
  uses_.Got(0, microseconds(1));
  EXPECT_TRUE(uses_.KnowsAll());
}

TEST_F(NextUsesTest, ATensorThatMovesIsNeededInItsNewUnits) {
  Put(2, In(300), 100);
  const Position need = uses_.Of(4);
  uses_.Moved(2, {101, 1, 8});
  EXPECT_EQ(uses_.Of(4), kNoPosition);
  EXPECT_EQ(uses_.Of(101), need);
  uses_.Moved(3, {103, 1, 8});  // nothing is announced of it
  EXPECT_EQ(uses_.Of(103), kNoPosition);
  uses_.Got(2, microseconds(200));
  EXPECT_EQ(uses_.Of(101), kNoPosition);
}

}  // namespace
}  // namespace ravenstore::core::plan
