#include "cluster/lend_limit.h"

#include <gtest/gtest.h>

namespace ravenstore::cluster {
namespace {

using core::GiB;
using core::Tick;
using std::chrono::seconds;

class LendLimitTest : public testing::Test {
 protected:
  LendLimit limit_ = LendLimit::Make({.reserve = GiB(4), .rise_time = seconds(10), .step = GiB(1)},
                                     GiB(16), GiB(64))
                         .value();
};

TEST_F(LendLimitTest, WhatIsIdleForAWhileMayBeLentUpToTheMost) {
  EXPECT_EQ(limit_.Look(Tick(seconds(0)), GiB(10), {}), GiB(0));
  EXPECT_EQ(limit_.Look(Tick(seconds(11)), GiB(10), {}), GiB(6));
  limit_.Look(Tick(seconds(12)), GiB(50), {});
  EXPECT_EQ(limit_.Look(Tick(seconds(30)), GiB(50), {}), GiB(16));
}

TEST_F(LendLimitTest, WhatIsLentStaysBesideWhatIsIdle) {
  limit_.Look(Tick(seconds(0)), GiB(6), GiB(4));
  EXPECT_EQ(limit_.Look(Tick(seconds(11)), GiB(6), GiB(4)), GiB(6));
}

TEST_F(LendLimitTest, WhatIsMissingOfTheReserveIsRecalledImmediately) {
  limit_.Look(Tick(seconds(0)), GiB(8), GiB(8));
  limit_.Look(Tick(seconds(11)), GiB(8), GiB(8));
  EXPECT_EQ(limit_.Look(Tick(seconds(12)), GiB(1), GiB(8)), GiB(5));
  EXPECT_EQ(limit_.Look(Tick(seconds(13)), GiB(0), GiB(2)), GiB(0));
}

TEST(LendLimit, AReserveAboveTheTotalIsAnError) {
  EXPECT_FALSE(LendLimit::Make({.reserve = GiB(2)}, GiB(1), GiB(1)).ok());
}

}  // namespace
}  // namespace ravenstore::cluster
