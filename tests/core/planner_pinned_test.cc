// Blocks of pinned memory share the host pool with tensors' copies.
#include <gtest/gtest.h>

#include <string>

#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

constexpr TenantId kOther{2};

class PlannerPinnedTest : public testing::Test {
 protected:
  explicit PlannerPinnedTest(Script::Setting setting = {.host = KiB(1024)}) : script_(setting) {}

  Planner& planner() { return script_.world().planner(); }
  void Hold(TenantId tenant, Bytes bytes) { script_.world().Tell(PinnedHeld{tenant, bytes}); }
  void Want(ClientId client, Bytes slab) { script_.world().Tell(PinnedWanted{client, slab}); }
  Status May(ClientId client, Bytes bytes) { return planner().MayPin(client, bytes, bytes); }
  // Pool that was pinned ahead comes and goes as it was asked to.
  void SlabsEnd() {
    while (!script_.world().slab_jobs().empty()) script_.world().FinishSlab(0, true);
  }
  ClientId Another(Bytes host_budget = KiB(1024)) {
    script_.world().SetTenant(kOther, {KiB(64), host_budget});
    return script_.world().Attach(kOther, {KiB(64), host_budget});
  }

  Script script_;
};

TEST_F(PlannerPinnedTest, SlabsCountInTheTierAndBlocksAreWhatIsUsedOfThem) {
  const Bytes held = planner().HostTier().held;
  Hold(Script::kTenant, KiB(128));
  script_.world().Tell(PinnedUsed{script_.me(), KiB(100)});
  EXPECT_EQ(planner().HostTier().held, held + KiB(128));
  EXPECT_EQ(planner().HostTier().used, KiB(100));
  EXPECT_EQ(planner().View(script_.me()).pinned, KiB(100));
}

TEST_F(PlannerPinnedTest, AClientsBudgetCoversItsBlocksAndItsUsersBudgetTheSlabs) {
  script_.world().SetTenant(Script::kTenant, {KiB(64), KiB(256)});
  script_.world().SetClient(script_.me(), {KiB(64), KiB(128)});
  Want(script_.me(), KiB(128));
  SlabsEnd();
  EXPECT_TRUE(May(script_.me(), KiB(128)).ok());
  EXPECT_FALSE(May(script_.me(), KiB(129)).ok());
  Hold(Script::kTenant, KiB(192));
  EXPECT_FALSE(May(script_.me(), KiB(128)).ok());
  EXPECT_TRUE(planner().MayPin(script_.me(), KiB(128), Bytes{0}).ok());
  script_.world().Tell(PinnedUsed{script_.me(), KiB(100)});
  const Status full = planner().MayPin(script_.me(), KiB(32), Bytes{0});
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(full.error().message.find("pinned memory is exhausted: no room for 32.0 KiB"), 0u)
      << full.error().message;
  EXPECT_NE(full.error().message.find("client 1 holds 100.0 KiB pinned"), std::string::npos)
      << full.error().message;
}

TEST_F(PlannerPinnedTest, WhatThePoolPinnedAheadMakesWay) {
  // The pool may be pinned whole though no tensor lives in it.
  SlabsEnd();
  const Bytes ahead = planner().HostTier().held;
  ASSERT_GT(ahead, Bytes{0});
  const Bytes all = KiB(1024);
  ASSERT_FALSE(May(script_.me(), all - Bytes(1024)).ok());
  Want(script_.me(), all - Bytes(1024));
  EXPECT_FALSE(May(script_.me(), all - Bytes(1024)).ok());  // it is still pinned
  SlabsEnd();
  EXPECT_TRUE(May(script_.me(), all - Bytes(1024)).ok());
  Hold(Script::kTenant, all - Bytes(1024));
  EXPECT_EQ(planner().HostTier().held, all - Bytes(1024));
  Hold(Script::kTenant, Bytes{0});
  script_.world().Advance(std::chrono::milliseconds(100));
  SlabsEnd();
  EXPECT_GT(planner().HostTier().held, Bytes{0});  // tensors may have it again
}

TEST(PlannerPinnedGrowthTest, WhatIsBeingPinnedIsWaitedForBeforeAnythingIsUnpinned) {
  World::Options options;
  options.planner.granularity = KiB(1);
  options.planner.device_capacity = {KiB(64)};
  options.planner.arena = {KiB(128)};
  options.planner.host_capacity = KiB(128);
  options.planner.host_step = KiB(64);
  options.planner.host_ahead = KiB(128);
  World world(options);
  world.SetTenant(TenantId{1}, {KiB(64), KiB(128)});
  const ClientId client = world.Attach(TenantId{1}, {KiB(64), KiB(128)});
  world.FinishSlab(0, true);  // the first half; the second is asked for
  ASSERT_EQ(world.slab_jobs().size(), 1u);
  world.Tell(PinnedWanted{client, KiB(100)});
  world.FinishSlab(0, true);
  EXPECT_EQ(world.planner().HostTier().held, KiB(128));
  world.Tell(PinnedWanted{client, KiB(100)});
  while (!world.slab_jobs().empty()) world.FinishSlab(0, true);
  EXPECT_TRUE(world.planner().MayPin(client, KiB(100), KiB(100)).ok());
}

TEST_F(PlannerPinnedTest, TensorsDoNotMakeWay) {
  script_.Make("A", KiB(64));
  script_.Create("B", KiB(64)).AllCopiesDone();
  ASSERT_EQ(script_.StateOf("A"), Script::State::kAway);
  Want(script_.me(), KiB(1024));
  SlabsEnd();
  EXPECT_FALSE(May(script_.me(), KiB(1024)).ok());
}

TEST_F(PlannerPinnedTest, ATensorThatFindsNoRoomAsksForIdleSlabsAndThenHasIt) {
  Want(script_.me(), KiB(1000));
  SlabsEnd();
  Hold(Script::kTenant, KiB(1000));
  script_.Make("A", KiB(64)).Create("B", KiB(64));
  const auto asked = script_.world().TakeReclaim();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->tenant, Script::kTenant);  // its budget is the whole pool
  Hold(Script::kTenant, KiB(100));
  SlabsEnd();
  script_.AllCopiesDone();
  EXPECT_EQ(script_.StateOf("B"), Script::State::kInUse);
}

class PlannerPinnedSharesTest : public PlannerPinnedTest {
 protected:
  PlannerPinnedSharesTest() : PlannerPinnedTest({.host = KiB(1024), .guaranteed_part = 8}) {}
};

TEST_F(PlannerPinnedSharesTest, OneUserMayTakeAllButTheLastEighth) {
  const ClientId other = Another();
  const Bytes most = KiB(896);
  Want(script_.me(), most);
  SlabsEnd();
  EXPECT_TRUE(May(script_.me(), most).ok());
  EXPECT_FALSE(May(script_.me(), most + Bytes(1024)).ok());
  Hold(Script::kTenant, most);
  script_.world().Tell(PinnedUsed{script_.me(), most});
  EXPECT_FALSE(May(script_.me(), KiB(16)).ok());
  // A 64th of the whole each is left to others.
  Want(other, KiB(16));
  SlabsEnd();
  EXPECT_TRUE(May(other, KiB(16)).ok());
  const Status refused = May(other, KiB(17));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("user 1 holds 896.0 KiB pinned"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(refused.error().message.find("client 1 holds"), std::string::npos)
      << "another user's client is named: " << refused.error().message;
}

}  // namespace
}  // namespace ravenstore::core
