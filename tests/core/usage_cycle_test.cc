#include "core/usage_cycle.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

using std::chrono::milliseconds;

// Creates of ten bytes, one each millisecond; frees say nothing.
class UsageCycleTest : public ::testing::Test {
 protected:
  void RiseTo(int top) {
    for (; live_ < top; live_ += 10, now_ += milliseconds(1)) {
      lived_.Add(Bytes(static_cast<uint64_t>(live_ + 10)));
      cycle_.Created(Bytes(static_cast<uint64_t>(live_)), Bytes(static_cast<uint64_t>(live_ + 10)),
                     lived_, now_);
    }
  }
  void FallTo(int bottom) {
    now_ += milliseconds(20);
    live_ = bottom;
  }
  bool Begins() const { return cycle_.Begins(Bytes(static_cast<uint64_t>(live_)), lived_); }

  UsageCycle cycle_;
  RecentRange lived_;
  Tick now_{milliseconds(1000)};
  int live_ = 0;
};

TEST_F(UsageCycleTest, NothingIsKnownBeforeTheFirstCycleIsOver) {
  EXPECT_FALSE(Begins());
  RiseTo(100);
  FallTo(50);
  EXPECT_FALSE(Begins());
  EXPECT_FALSE(cycle_.last());
  EXPECT_EQ(cycle_.UntilTop(now_), Duration{0});
}

TEST_F(UsageCycleTest, TellsHowHighTheLastOneWasAndWhen) {
  RiseTo(20);
  RiseTo(120);
  FallTo(20);
  EXPECT_TRUE(Begins());
  RiseTo(40);
  EXPECT_FALSE(Begins());
  ASSERT_TRUE(cycle_.last());
  EXPECT_EQ(cycle_.last()->top, Bytes{120});
  EXPECT_EQ(cycle_.last()->bottom, Bytes{0});
  EXPECT_EQ(cycle_.last()->rise, milliseconds(11));
  EXPECT_EQ(cycle_.UntilTop(now_), milliseconds(9));
  EXPECT_EQ(cycle_.UntilTop(now_ + milliseconds(9)), Duration{0});
  EXPECT_TRUE(cycle_.last()->IsFar(Bytes{60}));
  EXPECT_FALSE(cycle_.last()->IsFar(Bytes{70}));
}

TEST_F(UsageCycleTest, AnotherRiseWithinACycleIsNoOtherCycle) {
  RiseTo(120);
  FallTo(0);
  RiseTo(60);
  FallTo(40);
  EXPECT_FALSE(Begins());
  RiseTo(130);
  FallTo(0);
  RiseTo(10);
  EXPECT_EQ(cycle_.last()->top, Bytes{130});
  EXPECT_EQ(cycle_.last()->rise, milliseconds(34));
}

TEST_F(UsageCycleTest, WhoOnlyGrowsHasNone) {
  RiseTo(1000);
  EXPECT_FALSE(cycle_.last());
  EXPECT_FALSE(Begins());
}

TEST_F(UsageCycleTest, WhoHoldsAlwaysAsMuchHasNone) {
  for (int i = 0; i < 100; ++i) {
    RiseTo(100);
    FallTo(90);
  }
  EXPECT_FALSE(cycle_.last());
}

TEST_F(UsageCycleTest, TheLargestCreateIsKnownByItsSizeAndPlace) {
  for (int cycle = 0; cycle < 2; ++cycle) {
    RiseTo(50);
    lived_.Add(Bytes(90));
    cycle_.Created(Bytes(50), Bytes(90), lived_, now_);
    live_ = 90;
    RiseTo(120);
    FallTo(0);
  }
  ASSERT_TRUE(cycle_.last());
  EXPECT_EQ(cycle_.last()->largest, Bytes(40));
  EXPECT_EQ(cycle_.last()->largest_at, Bytes(50));
}

}  // namespace
}  // namespace ravenstore::core
