#include "core/catalog.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <set>

namespace ravenstore::core {
namespace {

TEST(CatalogTest, FindsWhatWasAdded) {
  Catalog catalog;
  const TensorId a = catalog.Add().id;
  const TensorId b = catalog.Add().id;
  EXPECT_NE(a, b);
  EXPECT_EQ(catalog.Find(a)->id, a);
  EXPECT_EQ(catalog.Find(b)->id, b);
  EXPECT_EQ(catalog.count(), 2u);
}

TEST(CatalogTest, KnowsNoTensorByTheNullId) {
  Catalog catalog;
  EXPECT_EQ(catalog.Find(kNoTensor), nullptr);
  const TensorId a = catalog.Add().id;
  catalog.Remove(a);
  EXPECT_EQ(catalog.Find(kNoTensor), nullptr);
  EXPECT_EQ(catalog.Find(TensorId{99}), nullptr);
}

TEST(CatalogTest, AnOldIdDoesNotFindTheRowsNextTensor) {
  Catalog catalog;
  const TensorId old = catalog.Add().id;
  catalog[Catalog::RowOf(old)].version = 7;
  catalog.Remove(old);
  EXPECT_EQ(catalog.Find(old), nullptr);
  const TensorRow& next = catalog.Add();
  EXPECT_EQ(Catalog::RowOf(next.id), Catalog::RowOf(old));
  EXPECT_NE(next.id, old);
  EXPECT_EQ(next.version, 0u);
  EXPECT_EQ(catalog.Find(old), nullptr);
  EXPECT_EQ(catalog.rows(), 1u);
}

TEST(CatalogTest, RowsStayWhereTheyAreAsItGrows) {
  Catalog catalog;
  const TensorId first = catalog.Add().id;
  const TensorRow* before = catalog.Find(first);
  for (int i = 0; i < 100000; ++i) catalog.Add();
  EXPECT_EQ(catalog.Find(first), before);
  EXPECT_EQ(catalog.count(), 100001u);
}

TEST(HoldingTest, KeepsWhatIsKnownOfTheNextUse) {
  Holding holding;
  holding.Expect({.kind = UseKind::kOrder, .key = -7, .dies = true, .correlated = true});
  EXPECT_EQ(holding.use_kind, UseKind::kOrder);
  EXPECT_EQ(holding.expected().key, -7);
  EXPECT_TRUE(holding.expected().dies);
  EXPECT_TRUE(holding.expected().correlated);
  EXPECT_FALSE(holding.expected().predicted);
  holding.Expect({.never = true});
  EXPECT_TRUE(holding.never);
  EXPECT_EQ(holding.use_kind, UseKind::kUnknown);
  EXPECT_FALSE(holding.dies);
}

constexpr int kStates = static_cast<int>(TensorState::kLost) + 1;

TEST(TensorStateTest, WhatFollowsWhatIsThisTable) {
  using enum TensorState;
  const std::map<TensorState, std::set<TensorState>> follows = {
      {kResident, {kChosen, kCleaning, kCopyingOut, kAway}},
      {kChosen, {kResident, kDropping, kDiscarding, kCopyingOut}},
      {kCleaning, {kResident, kCleaningToLeave}},
      {kCleaningToLeave, {kResident, kLeavingIrrevocably}},
      {kDropping, {kRescued, kResident, kAway, kLost}},
      {kDiscarding, {kRescued, kResident, kDiscarded}},
      {kCopyingOut, {kRescued, kResident, kLeavingIrrevocably, kAway}},
      {kRescued, {kResident, kLeavingIrrevocably, kAway, kLost}},
      {kLeavingIrrevocably, {kResident, kAway, kLost}},
      {kAway, {kArriving, kMovingOn, kLost}},
      {kMovingOn, {kAway, kLost}},
      {kDiscarded, {kResident}},
      {kArriving, {kResident, kAway, kLost}},
      {kLost, {}},
  };
  ASSERT_EQ(follows.size(), size_t{kStates});
  for (const auto& [from, allowed] : follows) {
    for (int i = 0; i < kStates; ++i) {
      const auto to = static_cast<TensorState>(i);
      EXPECT_EQ(MayBecome(from, to), allowed.contains(to)) << static_cast<int>(from) << " to " << i;
    }
  }
}

TEST(TensorStateTest, SaysWhereTheBytesAre) {
  using enum TensorState;
  struct Meaning {
    TensorState state;
    Residency residency;
    bool is_under_way;
    bool is_leaving;
  };
  constexpr Meaning kMeanings[] = {
      {kResident, Residency::kOnDevice, false, false},
      {kChosen, Residency::kOnDevice, true, false},
      {kCleaning, Residency::kOnDevice, true, false},
      {kCleaningToLeave, Residency::kOnDevice, true, true},
      {kDropping, Residency::kLeaving, true, true},
      {kDiscarding, Residency::kLeaving, true, true},
      {kCopyingOut, Residency::kLeaving, true, true},
      {kRescued, Residency::kOnDevice, true, false},
      {kLeavingIrrevocably, Residency::kLeavingIrrevocably, true, true},
      {kAway, Residency::kAway, false, false},
      {kMovingOn, Residency::kAway, true, false},
      {kDiscarded, Residency::kAway, false, false},
      {kArriving, Residency::kArriving, true, false},
      {kLost, Residency::kLost, false, false},
  };
  static_assert(std::size(kMeanings) == kStates);
  for (const Meaning& meaning : kMeanings) {
    EXPECT_EQ(ResidencyOf(meaning.state), meaning.residency);
    EXPECT_EQ(IsUnderWay(meaning.state), meaning.is_under_way);
    EXPECT_EQ(IsLeaving(meaning.state), meaning.is_leaving);
  }
}

TEST(CatalogTest, ATensorGoesFromStateToState) {
  Catalog catalog;
  TensorRow& tensor = catalog.Add();
  EXPECT_EQ(tensor.state(), TensorState::kResident);
  EXPECT_FALSE(tensor.is_leaving());
  Catalog::Commit(tensor, TensorState::kCleaning);
  EXPECT_EQ(tensor.residency(), Residency::kOnDevice);
  EXPECT_TRUE(tensor.is_being_cleaned());
  EXPECT_FALSE(tensor.is_leaving());
  Catalog::Commit(tensor, TensorState::kCleaningToLeave);
  EXPECT_TRUE(tensor.is_leaving());
  Catalog::Commit(tensor, TensorState::kResident);
  Catalog::Commit(tensor, TensorState::kChosen);
  Catalog::Commit(tensor, TensorState::kDropping);
  EXPECT_EQ(tensor.residency(), Residency::kLeaving);
  EXPECT_TRUE(tensor.is_leaving());
  Catalog::Commit(tensor, TensorState::kRescued);
  EXPECT_EQ(tensor.residency(), Residency::kOnDevice);
  EXPECT_FALSE(tensor.is_leaving());
  EXPECT_TRUE(tensor.is_under_way());
}

TEST(CatalogDeathTest, NoStateFollowsWhereItMayNot) {
  Catalog catalog;
  TensorRow& tensor = catalog.Add();
  EXPECT_DEATH(Catalog::Commit(tensor, TensorState::kArriving), "MayBecome");
}

TEST(TensorSlotsTest, CountsTheTensorsThatStandInThem) {
  TensorSlots slots;
  EXPECT_EQ(slots[3], TensorSlots::kNoRow);
  slots.Set(SlotId{3}, 30);
  slots.Set(SlotId{1}, 10);
  EXPECT_EQ(slots.size(), 4u);
  EXPECT_EQ(slots.tensors(), 2u);
  EXPECT_EQ(slots[1], 10u);
  EXPECT_EQ(slots[2], TensorSlots::kNoRow);
  slots.Clear(SlotId{1});
  EXPECT_EQ(slots[1], TensorSlots::kNoRow);
  EXPECT_EQ(slots.tensors(), 1u);
  EXPECT_EQ(slots.Pop(), 30u);
  EXPECT_EQ(slots.Pop(), TensorSlots::kNoRow);
  EXPECT_EQ(slots.tensors(), 0u);
  EXPECT_EQ(slots.size(), 2u);
}

TEST(ObjectTest, IsDirtyUnlessTheHostHoldsItsLastWrite) {
  Object object;
  EXPECT_TRUE(object.dirty());
  object.away.state = Replica::State::kCurrent;
  EXPECT_FALSE(object.dirty());
  object.away.state = Replica::State::kStale;
  EXPECT_TRUE(object.dirty());
}

TEST(CatalogTest, WhatIsDirtyNeedsACopyUnlessItsHolderNeverReadsItAgain) {
  TensorRow tensor;
  EXPECT_TRUE(tensor.needs_copy());
  tensor.never = true;
  EXPECT_FALSE(tensor.needs_copy());
  tensor.never = false;
  tensor.away.state = Replica::State::kCurrent;
  EXPECT_FALSE(tensor.needs_copy());
}

}  // namespace
}  // namespace ravenstore::core
