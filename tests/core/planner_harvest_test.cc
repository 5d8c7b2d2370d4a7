// Harvested memory: how it grows, what lies there, and how it is given back.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;
using CopyKind = World::CopyKind;

constexpr DeviceId kOwner{1};
constexpr PoolId kHarvest{3};  // behind the host's and two devices

// Device 0 holds two tensors of 4 KiB; of device 1 memory is harvested in chunks of 8 KiB.
Script::Setting TwoDevices() {
  Script::Setting setting;
  setting.capacity = KiB(8);
  setting.capacities = {KiB(8), KiB(64)};
  setting.devices = 2;
  setting.host = KiB(64);
  setting.others = {{PoolKind::kPeer, KiB(64), 400e9, 400e9, ToInt(kOwner), KiB(8)}};
  return setting;
}

class PlannerHarvestTest : public testing::Test {
 protected:
  // Each in the room that the copies before it leave.
  void Fill(const std::vector<std::string>& names) {
    for (const std::string& name : names)
      s_.Create(name, KiB(4)).AllCopiesDone().Put(name, Order(--order_));
  }
  void Harvest(Bytes most) {
    s_.world().SetPool(kHarvest, most);
    s_.FinishSlabs();
  }
  PoolId PoolOf(const std::string& name) {
    EXPECT_TRUE(s_.View(name).has_copy) << name;
    return s_.View(name).away;
  }
  Bytes Held() { return s_.world().planner().OtherTier(kHarvest).held; }

  Script s_{TwoDevices()};
  int64_t order_ = 1000;
};

TEST_F(PlannerHarvestTest, NothingLiesInMemoryThatIsNotHarvested) {
  Fill({"A", "B", "C"});
  EXPECT_EQ(PoolOf("A"), kHostPool);
  EXPECT_EQ(Held(), Bytes{0});
}

TEST_F(PlannerHarvestTest, WhatLeavesGoesToHarvestedMemoryAndIsCoveredOnTheHost) {
  Harvest(KiB(8));
  EXPECT_EQ(Held(), KiB(8));
  Fill({"A", "B", "C", "D", "E"});
  EXPECT_EQ(PoolOf("A"), kHarvest);
  EXPECT_EQ(PoolOf("B"), kHarvest);
  EXPECT_EQ(PoolOf("C"), kHostPool) << "what is harvested is full";
  EXPECT_EQ(s_.world().planner().HostTier().used, KiB(12)) << "two of three cover";
  s_.Get("A").AllCopiesDone().Use("A");
  EXPECT_EQ(s_.StateOf("A"), State::kInUse);
}

TEST_F(PlannerHarvestTest, WhatLeavesGoesToTheHostWhileCopiesThereAreCappedBelowItsLink) {
  Harvest(KiB(16));
  s_.world().SetPoolRate(kHarvest, 1e6);
  Fill({"A", "B", "C"});
  EXPECT_EQ(PoolOf("A"), kHostPool);
  s_.world().SetPoolRate(kHarvest, 0);
  Fill({"D"});
  EXPECT_EQ(PoolOf("B"), kHarvest);
}

TEST_F(PlannerHarvestTest, ItGrowsByChunksAheadOfNeedAndNoFurther) {
  Harvest(KiB(20));
  EXPECT_EQ(Held(), KiB(8));
  Fill({"A", "B", "C"});
  EXPECT_EQ(Held(), KiB(16)) << "one chunk ahead";
  Fill({"D", "E", "F", "G"});
  EXPECT_EQ(Held(), KiB(20)) << "the rest is a chunk of its own";
}

TEST_F(PlannerHarvestTest, WhatIsCleanIsGivenBackWithoutACopy) {
  Harvest(KiB(8));
  Fill({"A", "B", "C"});
  ASSERT_EQ(PoolOf("A"), kHarvest);
  s_.Free("B").Free("C");
  s_.Get("A").AllCopiesDone().PutUnchanged("A");  // on its device again, and a copy there
  ASSERT_TRUE(s_.View("A").has_copy);
  Harvest(Bytes{0});
  EXPECT_TRUE(s_.world().copies().empty());
  EXPECT_EQ(Held(), Bytes{0});
  EXPECT_FALSE(s_.View("A").has_copy);
  EXPECT_EQ(s_.world().planner().HostTier().used, Bytes{0});
}

TEST_F(PlannerHarvestTest, WhatLiesThereAloneMovesOnToItsPlaceOnTheHost) {
  Harvest(KiB(8));
  Fill({"A", "B", "C"});
  ASSERT_EQ(PoolOf("A"), kHarvest);
  s_.world().SetPool(kHarvest, Bytes{0});
  ASSERT_EQ(s_.CopyKindOf("A"), CopyKind::kOn);
  EXPECT_EQ(Held(), KiB(8)) << "until its bytes are elsewhere";
  s_.CopyDone("A").FinishSlabs();
  EXPECT_EQ(Held(), Bytes{0});
  EXPECT_EQ(PoolOf("A"), kHostPool);
  s_.Get("A").AllCopiesDone().Use("A");  // ends the test when bytes are wrong
  EXPECT_EQ(s_.StateOf("A"), State::kInUse);
}

TEST_F(PlannerHarvestTest, AGetOfWhatMovesOnWaitsUntilItHas) {
  Harvest(KiB(8));
  Fill({"A", "B", "C"});
  s_.world().SetPool(kHarvest, Bytes{0});
  s_.Free("C").Get("A");
  EXPECT_EQ(s_.StateOf("A"), State::kWaiting);
  s_.CopyDone("A").AllCopiesDone().Use("A");
  EXPECT_EQ(s_.StateOf("A"), State::kInUse);
}

TEST_F(PlannerHarvestTest, AFreeOfWhatMovesOnIsDoneWhenItHas) {
  Harvest(KiB(8));
  Fill({"A", "B", "C"});
  s_.world().SetPool(kHarvest, Bytes{0});
  s_.Free("A");
  EXPECT_NE(s_.StateOf("A"), State::kFreed);
  s_.CopyDone("A").FinishSlabs();
  EXPECT_EQ(s_.StateOf("A"), State::kFreed);
  EXPECT_EQ(Held(), Bytes{0});
}

TEST_F(PlannerHarvestTest, ACopyOnThatFailsIsTriedAgain) {
  Harvest(KiB(8));
  Fill({"A", "B", "C"});
  s_.world().SetPool(kHarvest, Bytes{0});
  s_.CopyFails("A").FinishSlabs();
  EXPECT_EQ(PoolOf("A"), kHarvest);
  EXPECT_FALSE(s_.IsCopying("A")) << "not at once";
  s_.Pass(std::chrono::milliseconds(200));
  ASSERT_TRUE(s_.IsCopying("A"));
  s_.CopyDone("A").FinishSlabs();
  EXPECT_EQ(PoolOf("A"), kHostPool);
}

TEST_F(PlannerHarvestTest, AChunkThatCannotGoCountsForGoodAndKeepsNobodyWaiting) {
  s_.Budget(KiB(64)).TenantBudgets({KiB(64), KiB(1024)});
  Harvest(KiB(8));
  s_.SlabsCome(false);
  s_.world().SetPool(kHarvest, Bytes{0});
  ASSERT_EQ(s_.world().slab_jobs().size(), 1u);
  s_.world().FinishSlab(0, /*ok=*/false);
  s_.SlabsCome(true);
  EXPECT_EQ(Held(), KiB(8));
  Harvest(KiB(16));
  EXPECT_EQ(Held(), KiB(16)) << "another one came beside it";
  s_.Create("O", KiB(32), kOwner);
  ASSERT_EQ(s_.StateOf("O"), State::kInUse);
  s_.Put("O", Order(1)).Create("P", KiB(32), kOwner);
  EXPECT_TRUE(s_.IsCopying("O")) << "what is harvested cannot make way";
  s_.AllCopiesDone();
  EXPECT_EQ(s_.StateOf("P"), State::kInUse);
}

TEST_F(PlannerHarvestTest, OfSeveralChunksTheCheapestToEmptyGoes) {
  Harvest(KiB(16));
  Fill({"A", "B", "C", "D", "E", "F"});
  for (const char* name : {"A", "B", "C", "D"}) ASSERT_EQ(PoolOf(name), kHarvest) << name;
  s_.Free("C").Free("D");
  Harvest(KiB(8));
  EXPECT_TRUE(s_.world().copies().empty()) << "the empty one";
  EXPECT_EQ(Held(), KiB(8));
  EXPECT_EQ(PoolOf("A"), kHarvest);
}

TEST_F(PlannerHarvestTest, AChunkWithCopiesUnderWayIsNotEmpty) {
  Harvest(KiB(16));
  Fill({"A", "B", "C", "D", "E", "F"});
  for (const char* name : {"A", "B", "C", "D"}) ASSERT_EQ(PoolOf(name), kHarvest) << name;
  s_.Free("A").Free("B").Free("C").Free("D");
  s_.Create("G", KiB(4));  // one of two leaves, for the first chunk
  const char* const leaves = s_.IsCopying("E") ? "E" : "F";
  ASSERT_TRUE(s_.IsCopying(leaves));
  s_.world().SetPool(kHarvest, KiB(8));
  s_.FinishSlabs();
  EXPECT_EQ(Held(), KiB(8)) << "the second has gone";
  s_.CopyDone(leaves);
  EXPECT_EQ(s_.View(leaves).away, kHarvest);
  EXPECT_FALSE(s_.IsCopying(leaves)) << "its chunk stays";
}

TEST_F(PlannerHarvestTest, AChunkThatMayStayAfterAllOpensAgain) {
  Harvest(KiB(8));
  Fill({"A", "B", "C"});
  s_.world().SetPool(kHarvest, Bytes{0});
  s_.world().SetPool(kHarvest, KiB(8));
  s_.AllCopiesDone();
  EXPECT_EQ(Held(), KiB(8));
  EXPECT_EQ(PoolOf("A"), kHostPool) << "its copy had begun";
}

TEST_F(PlannerHarvestTest, TheDevicesOwnClientsComeFirst) {
  Harvest(KiB(64));
  Fill({"A", "B", "C", "D", "E", "F"});
  ASSERT_EQ(PoolOf("A"), kHarvest);
  s_.Budget(KiB(64)).TenantBudgets({KiB(64), KiB(1024)});
  for (int i = 0; i < 16; ++i) {
    const std::string name = "own" + std::to_string(i);
    s_.Create(name, KiB(4), kOwner).AllCopiesDone();
    EXPECT_EQ(s_.StateOf(name), State::kInUse) << name;
  }
  EXPECT_EQ(Held(), Bytes{0});
  EXPECT_EQ(PoolOf("A"), kHostPool);
}

TEST_F(PlannerHarvestTest, ALoweredLimitOfTheDeviceTakesWhatIsHarvestedBeforeSlabs) {
  Harvest(KiB(32));
  Fill({"A", "B", "C"});
  s_.Budget(KiB(64)).TenantBudgets({KiB(64), KiB(1024)});
  s_.Create("own", KiB(16), kOwner).Put("own");
  s_.world().SetDevice(kOwner, KiB(16));
  s_.AllCopiesDone();
  EXPECT_EQ(Held(), Bytes{0});
  EXPECT_EQ(s_.StateOf("own"), State::kIdle);
}

TEST_F(PlannerHarvestTest, WhoTakesSomeBackIsGivenAsMuchAhead) {
  Harvest(KiB(64));
  std::vector<std::string> names;
  for (char name = 'A'; name < 'A' + 18; ++name) names.emplace_back(1, name);
  Fill(names);
  ASSERT_EQ(Held(), KiB(64));
  const auto take = [&](Bytes left) {
    s_.world().SetDevice(kOwner, left);
    s_.AllCopiesDone();
    return Held();
  };
  EXPECT_EQ(take(KiB(56)), KiB(48));
  EXPECT_EQ(take(KiB(48)), KiB(32)) << "twice";
  s_.Pass(std::chrono::milliseconds(200));
  EXPECT_EQ(take(KiB(24)), KiB(16)) << "as much as lately, not as ever";
}

TEST_F(PlannerHarvestTest, WithADeviceThatFailsWhatLayThereAloneIsLostAndSaidSo) {
  Harvest(KiB(8));
  Fill({"A", "B", "C"});
  s_.world().FailPool(kHarvest);
  s_.Get("A");
  EXPECT_EQ(s_.StateOf("A"), State::kLost);
  EXPECT_EQ(s_.Words("A"), "they were in peer 1, which failed");
  EXPECT_EQ(s_.world().planner().HostTier().used, Bytes{0});
}

}  // namespace
}  // namespace ravenstore::core
