#include "core/plan/planned_copies.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace ravenstore::core::plan {
namespace {

using std::chrono::milliseconds;

constexpr Bytes kPage = MiB(2);

class PlannedCopiesTest : public testing::Test {
 protected:
  // A page in the first, two in the last.
  const std::vector<CopyPool> pools_{{.capacity = kPage, .in_rate = 4e9, .out_rate = 4e9},
                                     {.capacity = kPage * 2, .in_rate = 1e9, .out_rate = 1e9}};
  PlannedCopies copies_{pools_};
};

TEST_F(PlannedCopiesTest, TheCheapestPoolWithRoomIsTaken) {
  EXPECT_EQ(copies_.Cheapest(kPage), 0);
  EXPECT_EQ(copies_.OutOf(kPage), pools_[0].OutOf(kPage));
  copies_.Add(0, kPage);
  EXPECT_EQ(copies_.Cheapest(kPage), 1);
  EXPECT_EQ(copies_.OutOf(kPage), pools_[1].OutOf(kPage));
  copies_.Add(1, kPage * 2);
  EXPECT_EQ(copies_.Cheapest(kPage), kNoPool);
  EXPECT_EQ(copies_.OutOf(kPage), pools_[1].OutOf(kPage));
  copies_.Remove(0, kPage);
  EXPECT_EQ(copies_.Cheapest(kPage), 0);
}

TEST_F(PlannedCopiesTest, EachLinkMakesItsCopiesInTurn) {
  const Duration first = copies_.Copy(0, kPage, milliseconds(5));
  EXPECT_EQ(first, milliseconds(5) + pools_[0].OutOf(kPage));
  EXPECT_EQ(copies_.Copy(0, kPage, milliseconds(1)), first + pools_[0].OutOf(kPage));
  EXPECT_EQ(copies_.Copy(1, kPage, Duration{0}), pools_[1].OutOf(kPage));
  EXPECT_EQ(copies_.LinkFree(kPage), pools_[1].OutOf(kPage));  // the cheapest by now
}

// The way back from the second takes the time of four copies by the first.
TEST_F(PlannedCopiesTest, ALinkThatIsBusyForLongIsNotTheCheapest) {
  for (int copy = 0; copy < 6; ++copy) {
    EXPECT_EQ(copies_.Cheapest(kPage), 0);
    copies_.Copy(0, kPage, Duration{0});
  }
  copies_.Copy(0, kPage, Duration{0});
  EXPECT_EQ(copies_.Cheapest(kPage), 1);
}

}  // namespace
}  // namespace ravenstore::core::plan
