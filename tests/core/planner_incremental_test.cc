// Tensors that leave for something much smaller: their room comes free part by part, beyond rescue.
#include <gtest/gtest.h>

#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;
using std::chrono::milliseconds;

// A and B fill the device; A is needed later.
Script Full(bool preclean = false) {
  Script s({.capacity = KiB(16), .slab = KiB(4), .preclean = preclean, .incremental_from = KiB(4)});
  s.Make("A", KiB(8), Order(2)).Make("B", KiB(8), Order(1));
  return s;
}

TEST(PlannerIncrementalTest, ARequestIsServedByAPartOfWhatLeaves) {
  Script s = Full();
  s.Create("C", KiB(4));
  EXPECT_EQ(s.StateOf("A"), State::kAway);
  EXPECT_EQ(s.View("A").residency, Residency::kLeavingIrrevocably);
  EXPECT_EQ(s.StateOf("C"), State::kWaiting);
  s.CopyDone("A");
  ASSERT_TRUE(s.IsCopying("A"));
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
  s.Put("C").CopyDone("A");
  EXPECT_EQ(s.View("A").residency, Residency::kAway);
  s.Free("C").Get("A").AllCopiesDone().Use("A");
}

TEST(PlannerIncrementalTest, WhatIsHardlyLargerThanTheRequestMayBeRescued) {
  Script s = Full();
  s.Create("C", KiB(5));
  EXPECT_EQ(s.StateOf("A"), State::kLeaving);
  s.Get("A").AllCopiesDone().Use("A");
  EXPECT_EQ(s.stats().rescues, 1u);
}

TEST(PlannerIncrementalTest, AGetOfWhatLeavesBeyondRescueBringsItBack) {
  for (const bool half_released : {false, true}) {
    SCOPED_TRACE(half_released);
    Script s = Full();
    s.Create("C", KiB(2));
    if (half_released) s.CopyDone("A").Put("C").Free("C");
    s.Get("A");
    EXPECT_EQ(s.StateOf("A"), State::kWaiting);
    s.AllCopiesDone();
    if (!half_released) s.Put("C").Free("C").AllCopiesDone();
    EXPECT_EQ(s.StateOf("A"), State::kInUse);
    s.Use("A");
  }
}

TEST(PlannerIncrementalTest, WhatIsCopiedOutAheadGoesOnAsOneThatLeaves) {
  Script s = Full(/*preclean=*/true);
  s.Create("C", KiB(2)).AllCopiesDone().Put("C", Order(9));
  s.Pass(milliseconds(1));
  ASSERT_EQ(s.CopyKindOf("B"), World::CopyKind::kClean);
  s.Create("D", KiB(4)).Create("E", KiB(4));
  EXPECT_EQ(s.View("B").residency, Residency::kLeavingIrrevocably);
  EXPECT_EQ(s.StateOf("B"), State::kAway);
  s.CopyDone("B");
  EXPECT_TRUE(s.IsCopying("B"));
  EXPECT_EQ(s.StateOf("E"), State::kInUse);
  s.AllCopiesDone().Free("D").Free("E").Get("B").AllCopiesDone().Use("B");
}

TEST(PlannerIncrementalTest, AFailureLosesOnlyWhatGaveRoomAway) {
  for (const bool half_released : {false, true}) {
    SCOPED_TRACE(half_released);
    Script s = Full();
    s.Create("C", KiB(4));
    if (half_released) s.CopyDone("A");
    s.CopyFails("A");
    s.Get("A");
    EXPECT_EQ(s.StateOf("A"), half_released ? State::kLost : State::kInUse);
    if (!half_released) s.Use("A");
    s.Pass(milliseconds(500)).AllCopiesDone();
    EXPECT_EQ(s.StateOf("C"), State::kInUse);
  }
}

TEST(PlannerIncrementalTest, AFreeWaitsForTheEndOfTheCopy) {
  Script s = Full();
  s.Create("C", KiB(4)).CopyDone("A").Free("A");
  ASSERT_TRUE(s.IsCopying("A"));
  s.CopyDone("A").Put("C").Create("D", KiB(4));
  EXPECT_EQ(s.StateOf("D"), State::kInUse);
}

TEST(PlannerIncrementalTest, ADeadClientsCopyEnds) {
  Script s = Full();
  s.Create("C", KiB(4)).CopyDone("A");
  const ClientId other = s.world().Attach(Script::kTenant, {KiB(16), KiB(64)});
  s.world().Kill(s.me());
  s.AllCopiesDone().As(other).Make("X", KiB(16));
  EXPECT_EQ(s.StateOf("X"), State::kIdle);
}

}  // namespace
}  // namespace ravenstore::core
