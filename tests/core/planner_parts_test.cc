// Tensors that leave for something much smaller: their room comes free part by part, beyond rescue.
#include <gtest/gtest.h>

#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;
using std::chrono::milliseconds;

// A and B fill the device; A is needed later.
Script Full(bool preclean = false) {
  Script s({.capacity = KiB(16), .slab = KiB(4), .preclean = preclean, .parts_from = KiB(4)});
  s.Make("A", KiB(8), Order(2)).Make("B", KiB(8), Order(1));
  return s;
}

TEST(PlannerPartsTest, ARequestIsServedByAPartOfWhatLeaves) {
  Script s = Full();
  s.Create("C", KiB(4));
  EXPECT_EQ(s.StateOf("A"), State::kAway);
  EXPECT_EQ(s.View("A").residency, Residency::kGoing);
  EXPECT_EQ(s.StateOf("C"), State::kWaiting);
  s.CopyDone("A");
  ASSERT_TRUE(s.IsCopying("A"));
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
  s.Put("C").CopyDone("A");
  EXPECT_EQ(s.View("A").residency, Residency::kAway);
  s.Free("C").Get("A").AllCopiesDone().Use("A");
}

TEST(PlannerPartsTest, WhatIsHardlyLargerThanTheRequestMayBeRescued) {
  Script s = Full();
  s.Create("C", KiB(5));
  EXPECT_EQ(s.StateOf("A"), State::kLeaving);
  s.Get("A").AllCopiesDone().Use("A");
  EXPECT_EQ(s.stats().rescues, 1u);
}

TEST(PlannerPartsTest, AGetOfWhatLeavesBeyondRescueBringsItBack) {
  for (const bool parted : {false, true}) {
    SCOPED_TRACE(parted);
    Script s = Full();
    s.Create("C", KiB(2));
    if (parted) s.CopyDone("A").Put("C").Free("C");
    s.Get("A");
    EXPECT_EQ(s.StateOf("A"), State::kWaiting);
    s.AllCopiesDone();
    if (!parted) s.Put("C").Free("C").AllCopiesDone();
    EXPECT_EQ(s.StateOf("A"), State::kInUse);
    s.Use("A");
  }
}

TEST(PlannerPartsTest, WhatIsCopiedOutAheadGoesOnAsOneThatLeaves) {
  Script s = Full(/*preclean=*/true);
  s.Create("C", KiB(2)).AllCopiesDone().Put("C", Order(9));
  s.Pass(milliseconds(1));
  ASSERT_EQ(s.CopyKindOf("B"), World::CopyKind::kClean);
  s.Create("D", KiB(4)).Create("E", KiB(4));
  EXPECT_EQ(s.View("B").residency, Residency::kGoing);
  EXPECT_EQ(s.StateOf("B"), State::kAway);
  s.CopyDone("B");
  EXPECT_TRUE(s.IsCopying("B"));
  EXPECT_EQ(s.StateOf("E"), State::kInUse);
  s.AllCopiesDone().Free("D").Free("E").Get("B").AllCopiesDone().Use("B");
}

TEST(PlannerPartsTest, AFailureLosesOnlyWhatGaveRoomAway) {
  for (const bool parted : {false, true}) {
    SCOPED_TRACE(parted);
    Script s = Full();
    s.Create("C", KiB(4));
    if (parted) s.CopyDone("A");
    s.CopyFails("A");
    s.Get("A");
    EXPECT_EQ(s.StateOf("A"), parted ? State::kLost : State::kInUse);
    if (!parted) s.Use("A");
    s.Pass(milliseconds(500)).AllCopiesDone();
    EXPECT_EQ(s.StateOf("C"), State::kInUse);
  }
}

TEST(PlannerPartsTest, AFreeWaitsForTheEndOfTheCopy) {
  Script s = Full();
  s.Create("C", KiB(4)).CopyDone("A").Free("A");
  ASSERT_TRUE(s.IsCopying("A"));
  s.CopyDone("A").Put("C").Create("D", KiB(4));
  EXPECT_EQ(s.StateOf("D"), State::kInUse);
}

TEST(PlannerPartsTest, ADeadClientsCopyEnds) {
  Script s = Full();
  s.Create("C", KiB(4)).CopyDone("A");
  const ClientId other = s.world().Attach(Script::kTenant, {KiB(16), KiB(64)});
  s.world().Kill(s.me());
  s.AllCopiesDone().As(other).Make("X", KiB(16));
  EXPECT_EQ(s.StateOf("X"), State::kIdle);
}

}  // namespace
}  // namespace ravenstore::core
