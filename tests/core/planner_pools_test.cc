// Where tensors go that leave their device, when there are more pools than the host's.
#include <gtest/gtest.h>

#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;

constexpr PoolId kPeer{2};
constexpr PoolId kFile{3};

// The device holds two tensors of 4 KiB, a fast peer two and a slow file many.
Script::Setting FourPools() {
  Script::Setting setting;
  setting.capacity = KiB(8);
  setting.host = KiB(16);
  setting.others = {{PoolKind::kDevice, KiB(8), 400e9, 400e9},
                    {PoolKind::kFile, KiB(64), 7e9, 5e9}};
  return setting;
}

PoolId PoolOfCopy(Script& s, const std::string& name) {
  EXPECT_TRUE(s.View(name).has_copy) << name;
  return s.View(name).away;
}

TEST(PlannerPoolsTest, WhatLeavesGoesToTheNearestPoolThatHasRoom) {
  Script s(FourPools());
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, KiB(4)).AllCopiesDone();
  EXPECT_EQ(PoolOfCopy(s, "A"), kPeer);
  EXPECT_EQ(PoolOfCopy(s, "B"), kPeer);
  for (const char* name : {"E", "F", "G", "H", "I"}) s.Make(name, KiB(4)).AllCopiesDone();
  for (const char* name : {"C", "D", "E", "F"}) EXPECT_EQ(PoolOfCopy(s, name), kHostPool) << name;
  EXPECT_EQ(PoolOfCopy(s, "G"), kFile);
  EXPECT_EQ(s.world().planner().OtherTier(kPeer).used, KiB(8));
  EXPECT_EQ(s.world().planner().OtherTier(kFile).used, KiB(4));
}

TEST(PlannerPoolsTest, ATensorComesBackFromThePoolWhereItLies) {
  Script s(FourPools());
  for (const char* name : {"A", "B", "C", "D", "E"}) s.Make(name, KiB(4)).AllCopiesDone();
  ASSERT_EQ(PoolOfCopy(s, "A"), kPeer);
  ASSERT_EQ(PoolOfCopy(s, "C"), kHostPool);
  for (const char* name : {"A", "C"}) {
    s.Get(name).AllCopiesDone().Use(name);  // ends the test when bytes are wrong
    EXPECT_EQ(s.StateOf(name), State::kInUse);
    s.PutUnchanged(name);
  }
}

TEST(PlannerPoolsTest, WhatWasWrittenGivesItsOldCopyUpWhereverThatIs) {
  Script s(FourPools());
  for (const char* name : {"A", "B", "C"}) s.Make(name, KiB(4)).AllCopiesDone();
  ASSERT_EQ(PoolOfCopy(s, "A"), kPeer);
  s.Get("A").AllCopiesDone().Put("A");
  EXPECT_FALSE(s.View("A").has_copy);
}

TEST(PlannerPoolsTest, ATenantsBudgetHoldsForEachPool) {
  Script s(FourPools());
  s.TenantBudgets({KiB(8), KiB(1024), std::nullopt, {{kPeer, KiB(4)}}});
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, KiB(4)).AllCopiesDone();
  EXPECT_EQ(PoolOfCopy(s, "A"), kPeer);
  EXPECT_EQ(PoolOfCopy(s, "B"), kHostPool);
  s.Free("A");
  s.Make("E", KiB(4)).AllCopiesDone();
  EXPECT_EQ(PoolOfCopy(s, "C"), kPeer);
}

TEST(PlannerPoolsTest, RoomThatRedundantCopiesTakeIsNearerThanASlowerPool) {
  Script::Setting setting = FourPools();
  setting.host = KiB(4);
  setting.others = {{PoolKind::kFile, KiB(64), 7e6, 5e6}};
  Script s(setting);
  s.Make("A", KiB(4)).Make("B", KiB(4)).Make("C", KiB(4)).AllCopiesDone();
  ASSERT_EQ(PoolOfCopy(s, "A"), kHostPool);
  s.Free("C");
  s.Get("A").AllCopiesDone().PutUnchanged("A", Order(1));  // its copy is redundant now
  s.Get("B").Put("B", Order(9));
  s.Make("D", KiB(4)).AllCopiesDone();
  EXPECT_EQ(PoolOfCopy(s, "B"), kHostPool);
  EXPECT_FALSE(s.View("A").has_copy);
}

TEST(PlannerPoolsTest, PrefetchGoesOnOverOneLinkWhileAnotherIsBusy) {
  Script::Setting setting = FourPools();
  setting.capacity = KiB(16);
  setting.prefetch = true;
  setting.in_flight = KiB(4);  // one copy at a time over each link
  Script s(setting);
  s.SlabsCome(true);
  int64_t order = 0;
  for (const char* name : {"A", "B", "C", "D", "E", "F", "G", "H"})
    s.Make(name, KiB(4), Order(++order)).AllCopiesDone();
  // Three of the four on the device are not needed any more: what lies in the two pools comes.
  ASSERT_EQ(PoolOfCopy(s, "H") == kFile, false);
  std::vector<std::string> away;
  for (const char* name : {"A", "B", "C", "D", "E", "F", "G", "H"})
    if (s.StateOf(name) == State::kAway) away.emplace_back(name);
  ASSERT_EQ(away.size(), 4u);
  std::vector<std::string> here;
  for (const char* name : {"A", "B", "C", "D", "E", "F", "G", "H"})
    if (s.StateOf(name) == State::kIdle) here.emplace_back(name);
  s.Get(here[0]);
  for (const std::string& name : {here[1], here[2], here[3]}) s.Free(name);
  int copying = 0;
  for (const std::string& name : away) copying += s.IsCopying(name) ? 1 : 0;
  EXPECT_EQ(copying, 2);
}

}  // namespace
}  // namespace ravenstore::core
