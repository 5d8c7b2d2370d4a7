#include "daemon/harvest.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::GiB;
using core::MiB;
using core::Tick;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Tick kNow{seconds(100)};

class HarvestTest : public testing::Test {
 protected:
  Bytes Look(Tick now, Bytes held, Bytes free, Bytes idle) {
    return harvest_.Look(now, held, {free, idle});
  }
  void Update(Tick now, Bytes held) {
    harvest_.Update(now, held, [this] {
      ++asked_;
      return "1 tensor is copied";
    });
  }
  Harvest::Then RecordOutcome() {
    return [this](const Harvest::Returned& returned) { outcomes_.push_back(returned); };
  }

  Harvest harvest_{{.name = "peer 0",
                    .reserve = GiB(2),
                    .each_gib = milliseconds(50),
                    .least = milliseconds(100),
                    .hold = seconds(10)}};
  int asked_ = 0;
  std::vector<Harvest::Returned> outcomes_;
};

TEST_F(HarvestTest, WhatIsIdleMayBeAddedAndWhatTheReserveLacksGoesBack) {
  EXPECT_EQ(Look(kNow, GiB(0), GiB(10), GiB(8)), GiB(8));
  EXPECT_EQ(Look(kNow, GiB(3), GiB(7), GiB(5)), GiB(8));
  EXPECT_EQ(Look(kNow, GiB(8), GiB(2), GiB(0)), GiB(8));
  EXPECT_EQ(harvest_.deadline(), core::kNever) << "nothing is given back";
  EXPECT_EQ(Look(kNow, GiB(8), GiB(1), GiB(0)), GiB(7));
  EXPECT_EQ(Look(kNow, GiB(8), GiB(0), GiB(0)), GiB(6));
  EXPECT_EQ(Look(kNow, GiB(1), GiB(0), GiB(0)), GiB(0));
}

TEST_F(HarvestTest, AStaleLookAllowsNoMoreThanBefore) {
  EXPECT_EQ(Look(kNow, GiB(0), GiB(10), GiB(8)), GiB(8));
  const Harvest::Unharvested without_a_chunk{.free = GiB(10), .idle = GiB(8), .is_stale = true};
  EXPECT_EQ(harvest_.Look(kNow, GiB(1), without_a_chunk), GiB(8));
  const Harvest::Unharvested reserve_touched{.free = GiB(1), .idle = GiB(0), .is_stale = true};
  EXPECT_EQ(harvest_.Look(kNow, GiB(8), reserve_touched), GiB(7)) << "but less";
}

TEST_F(HarvestTest, AReturnEndsWhenItsBytesAreFreedAndIsTimed) {
  Look(kNow, GiB(8), GiB(0), GiB(0));
  EXPECT_EQ(harvest_.deadline(), kNow + milliseconds(100));
  Update(kNow + milliseconds(20), GiB(7));
  EXPECT_EQ(harvest_.counts().returns, 0u);
  Update(kNow + milliseconds(40), GiB(6));
  EXPECT_EQ(harvest_.counts().returns, 1u);
  EXPECT_EQ(harvest_.counts().bytes, GiB(2));
  EXPECT_EQ(harvest_.counts().last, milliseconds(40));
  EXPECT_EQ(harvest_.counts().missed, 0u);
  EXPECT_EQ(harvest_.deadline(), core::kNever);
}

TEST_F(HarvestTest, WhatCannotBeReturnedIsNotAwaitedAndNotCounted) {
  Look(kNow, GiB(8), GiB(10), GiB(8));
  harvest_.Return(kNow, GiB(8), GiB(8), seconds(1), RecordOutcome());
  harvest_.Lose(GiB(2));
  Update(kNow + milliseconds(10), GiB(0));
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].bytes, GiB(6));
  EXPECT_EQ(outcomes_[0].late, "");
}

TEST_F(HarvestTest, TheDeadlineGrowsWithWhatIsToGo) {
  Look(kNow, GiB(20), GiB(1), GiB(0));
  EXPECT_EQ(harvest_.deadline(), kNow + milliseconds(100)) << "at least";
  Harvest large({.name = "peer 1", .reserve = GiB(10)});
  large.Look(kNow, GiB(20), {GiB(0), GiB(0)});
  EXPECT_EQ(large.deadline(), kNow + milliseconds(500));
}

TEST_F(HarvestTest, OneThatIsLateIsCountedOnceAndItsCauseAskedFor) {
  Look(kNow, GiB(8), GiB(1), GiB(0));
  Update(kNow + milliseconds(100), GiB(8));
  EXPECT_EQ(harvest_.counts().missed, 1u);
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(harvest_.deadline(), core::kNever);
  Update(kNow + milliseconds(200), GiB(8));
  EXPECT_EQ(asked_, 1);
  Update(kNow + milliseconds(300), GiB(7));
  EXPECT_EQ(harvest_.counts().returns, 1u);
  EXPECT_EQ(harvest_.counts().missed, 1u);
  EXPECT_EQ(harvest_.counts().longest, milliseconds(300));
}

TEST_F(HarvestTest, WhatAnOperatorHasReturnedStaysSoForAWhile) {
  Look(kNow, GiB(8), GiB(6), GiB(4));
  EXPECT_EQ(harvest_.Return(kNow, GiB(8), GiB(5), milliseconds(500), RecordOutcome()), GiB(3));
  EXPECT_EQ(harvest_.deadline(), kNow + milliseconds(500));
  EXPECT_EQ(Look(kNow + seconds(1), GiB(3), GiB(11), GiB(9)), GiB(3));
  Update(kNow + seconds(1), GiB(3));
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].bytes, GiB(5));
  EXPECT_EQ(outcomes_[0].took, seconds(1));
  EXPECT_EQ(Look(kNow + seconds(11), GiB(3), GiB(11), GiB(9)), GiB(12));
}

TEST_F(HarvestTest, WhatAnOperatorWantsIsNotTakenBackWhileItIsReturned) {
  harvest_.Return(kNow, GiB(8), GiB(8), seconds(60), RecordOutcome());
  EXPECT_EQ(Look(kNow + seconds(30), GiB(8), GiB(6), GiB(4)), GiB(0));
  Update(kNow + seconds(31), GiB(0));
  EXPECT_EQ(Look(kNow + seconds(40), GiB(0), GiB(14), GiB(12)), GiB(0));
  EXPECT_EQ(Look(kNow + seconds(41), GiB(0), GiB(14), GiB(12)), GiB(12));
}

TEST_F(HarvestTest, AnOperatorLearnsAtTheDeadlineWhatItWaitsFor) {
  harvest_.Return(kNow, GiB(8), GiB(8), milliseconds(500), RecordOutcome());
  Update(kNow + milliseconds(500), GiB(2));
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].bytes, GiB(6));
  EXPECT_EQ(outcomes_[0].late, "1 tensor is copied");
  Update(kNow + milliseconds(600), GiB(0));
  EXPECT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(harvest_.counts().returns, 1u);
}

TEST_F(HarvestTest, AReturnThatGrowsMayTakeAsLongAsALargeOne) {
  Look(kNow, GiB(20), GiB(1), GiB(0));
  harvest_.Look(kNow + milliseconds(50), GiB(20), {GiB(0), GiB(0)});
  EXPECT_EQ(harvest_.deadline(), kNow + milliseconds(100));
  Update(kNow + milliseconds(60), GiB(19));
  EXPECT_EQ(harvest_.counts().returns, 0u) << "two are to go now";
  Update(kNow + milliseconds(70), GiB(18));
  EXPECT_EQ(harvest_.counts().returns, 1u);
}

TEST_F(HarvestTest, AnotherOperatorTakesThePlaceOfTheFirst) {
  harvest_.Return(kNow, GiB(8), GiB(2), milliseconds(500), RecordOutcome());
  EXPECT_EQ(harvest_.Return(kNow, GiB(8), GiB(1), milliseconds(900), RecordOutcome()), GiB(6));
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].late, "another give-back was asked for");
  Update(kNow + milliseconds(600), GiB(6));
  EXPECT_EQ(outcomes_.size(), 2u);
}

}  // namespace
}  // namespace ravenstore::daemon
