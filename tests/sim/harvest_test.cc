// Harvested memory in the simulator: its limits, its chunks, what is read there and given back.
#include "sim/harvest.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "sim/inputs.h"
#include "sim/score.h"
#include "sim/simulator.h"
#include "sim/trace.h"

namespace ravenstore::sim {

using core::GiB;
using core::MiB;
using std::chrono::milliseconds;

namespace {

constexpr core::Tick kBegin{std::chrono::seconds(1)};
constexpr core::Tick At(int64_t ms) {
  return kBegin + milliseconds(ms);
}

class HarvestedPoolTest : public testing::Test {
 protected:
  const std::vector<HarvestLimit> limits_{{milliseconds(0), GiB(1)},
                                          {milliseconds(100), MiB(512)},
                                          {milliseconds(150), MiB(768)},
                                          {milliseconds(200), core::Bytes{0}}};
  HarvestedPool pool_{limits_, milliseconds(3), kBegin};
};

TEST_F(HarvestedPoolTest, LimitsComeByTime) {
  for (const HarvestLimit& limit : limits_) {
    ASSERT_EQ(pool_.NextChange(), kBegin + limit.at);
    EXPECT_EQ(pool_.Change(kBegin + limit.at), limit.most);
  }
  EXPECT_EQ(pool_.NextChange(), core::kNever);
}

TEST_F(HarvestedPoolTest, ChunksComeAndGoOneAfterTheOther) {
  EXPECT_EQ(pool_.Grow(MiB(256), At(10)), At(13));
  EXPECT_EQ(pool_.Grow(MiB(257), At(11)), At(19)) << "of two chunks' size";
  EXPECT_EQ(pool_.Shrink(MiB(100), At(30)), At(33));
}

TEST_F(HarvestedPoolTest, AGiveBackLastsUntilTheLimitIsKept) {
  pool_.Change(At(0));
  pool_.Grow(GiB(1), At(0));
  pool_.BeginMoveOn(MiB(8));
  pool_.BeginCopy(MiB(3));
  pool_.BeginCopy(MiB(2));
  pool_.EndCopy(MiB(3));
  pool_.Change(At(100));
  pool_.BeginMoveOn(MiB(4));
  pool_.EndMoveOn(MiB(8));
  pool_.Shrink(MiB(256), At(105));
  pool_.Shrunk(MiB(256), At(110));
  pool_.Shrink(MiB(256), At(110));
  pool_.Shrunk(MiB(256), At(120));
  const HarvestUse use = pool_.End(At(130));
  ASSERT_EQ(use.give_backs.size(), 1u);
  const GiveBack& one = use.give_backs[0];
  EXPECT_TRUE(one.done);
  EXPECT_EQ(one.took, milliseconds(20));
  EXPECT_EQ(one.bytes, MiB(512));
  EXPECT_EQ(one.copied, MiB(12)) << "with what was on its way";
  EXPECT_EQ(one.in_flight, MiB(2));
  EXPECT_EQ(one.chunks, milliseconds(6));
}

TEST_F(HarvestedPoolTest, AGiveBackThatALimitRelievesIsNotDone) {
  pool_.Change(At(0));
  pool_.Grow(MiB(768), At(0));
  pool_.Change(At(100));
  pool_.Change(At(150));
  const HarvestUse use = pool_.End(At(160));
  ASSERT_EQ(use.give_backs.size(), 1u);
  EXPECT_FALSE(use.give_backs[0].done);
  EXPECT_EQ(use.give_backs[0].took, milliseconds(50));
}

TEST_F(HarvestedPoolTest, AGiveBackThatNeverEndsIsCounted) {
  pool_.Change(At(0));
  pool_.Grow(GiB(1), At(0));
  pool_.Change(At(100));
  pool_.Change(At(150));  // still less than it holds
  const HarvestUse use = pool_.End(At(190));
  ASSERT_EQ(use.give_backs.size(), 1u);
  EXPECT_FALSE(use.give_backs[0].done);
  EXPECT_EQ(use.give_backs[0].took, milliseconds(90));
}

TEST_F(HarvestedPoolTest, UseIsCountedByBytesAndTime) {
  pool_.Change(At(0));
  pool_.Grow(MiB(256), At(50));
  pool_.Read(MiB(8), At(60), At(80));
  const HarvestUse use = pool_.End(At(100));
  EXPECT_DOUBLE_EQ(use.idle, 0.1 * 0x1p30);
  EXPECT_DOUBLE_EQ(use.held, 0.05 * 0x1p28);
  EXPECT_DOUBLE_EQ(use.useful, 0.02 * 0x1p23);
}

// Copies to and from the host take 8.39 ms, to and from the peer a quarter of that.
Hardware Simple() {
  Hardware hardware;
  hardware.up = hardware.down = 1e9;
  hardware.latency = core::Duration{0};
  hardware.per_copy = core::Duration{0};
  hardware.memory = GiB(1);
  return hardware;
}

Setup WithHarvest(std::vector<HarvestLimit> limits) {
  Setup setup = *SetupFor("demand-lru", Simple(), MiB(8));
  setup.pools = {{core::PoolKind::kPeer, GiB(1), 4e9, 4e9, std::move(limits)}};
  return setup;
}

constexpr double kPeerCopy = 8.388608 / 4;

// Of two tensors of 8 MiB one is on the device: 0 leaves after 5 ms, and is read after `away`.
Trace LeavesAndComesBack(core::Duration away) {
  Trace trace;
  trace.tensors = {{0, MiB(8), ""}, {0, MiB(8), ""}};
  trace.ops = {{.kind = OpKind::kCreate, .tensor = 0},
               {.kind = OpKind::kPut, .tensor = 0, .modified = true},
               {.kind = OpKind::kCompute, .time = milliseconds(5)},
               {.kind = OpKind::kCreate, .tensor = 1},
               {.kind = OpKind::kFree, .tensor = 1},
               {.kind = OpKind::kCompute, .time = away},
               {.kind = OpKind::kGet, .tensor = 0},
               {.kind = OpKind::kPut, .tensor = 0}};
  return trace;
}

TEST(HarvestTest, WhatLeavesAfterTheFirstChunkCameLiesThereUntilItIsRead) {
  const Outcome outcome =
      Simulate(LeavesAndComesBack(milliseconds(100)), WithHarvest({{milliseconds(0), GiB(1)}}));
  ASSERT_EQ(outcome.failure, "");
  EXPECT_NEAR(core::Milliseconds(outcome.stall), 2 * kPeerCopy, 0.01);
  ASSERT_EQ(outcome.harvests.size(), 1u);
  const HarvestUse& use = outcome.harvests[0];
  EXPECT_NEAR(use.useful, (0.1 + kPeerCopy * 1e-3) * 0x1p23, 1e3);
  EXPECT_NEAR(use.idle, core::Seconds(outcome.time) * 0x1p30, 1e6);
  EXPECT_TRUE(use.give_backs.empty());
}

TEST(HarvestTest, NothingLiesThereBeforeItsChunkHasCome) {
  auto setup = WithHarvest({{milliseconds(0), GiB(1)}});
  setup.hardware.chunk_changed = milliseconds(50);
  const Outcome outcome = Simulate(LeavesAndComesBack(milliseconds(10)), setup);
  ASSERT_EQ(outcome.failure, "");
  EXPECT_NEAR(core::Milliseconds(outcome.stall), 2 * 8.388608, 0.01) << "over the host's link";
}

TEST(HarvestTest, WhatLiesThereAloneMovesOnOverThePeersLinkToTheHost) {
  const Outcome outcome =
      Simulate(LeavesAndComesBack(milliseconds(100)),
               WithHarvest({{milliseconds(0), GiB(1)}, {milliseconds(50), core::Bytes{0}}}));
  ASSERT_EQ(outcome.failure, "");
  EXPECT_NEAR(core::Milliseconds(outcome.stall), kPeerCopy + 8.388608, 0.01);
  const HarvestUse& use = outcome.harvests[0];
  EXPECT_EQ(use.useful, 0) << "it was read on the host";
  ASSERT_EQ(use.give_backs.size(), 1u);
  EXPECT_TRUE(use.give_backs[0].done);
  EXPECT_EQ(use.give_backs[0].copied, MiB(8));
  EXPECT_EQ(use.give_backs[0].in_flight, core::Bytes{0});
  // One chunk had come beside it, ahead of need.
  EXPECT_EQ(use.give_backs[0].bytes, MiB(512));
  EXPECT_NEAR(core::Milliseconds(use.give_backs[0].took), 8.388608 + 3, 0.01);
}

// Two tensors make room for a third, each in another peer's memory, though one has room for both.
TEST(HarvestTest, TheDevicesPortIsSharedByItsPeers) {
  Trace trace;
  trace.tensors = {{0, MiB(8), ""}, {0, MiB(8), ""}, {0, MiB(16), ""}};
  trace.ops = {{.kind = OpKind::kCreate, .tensor = 0},
               {.kind = OpKind::kPut, .tensor = 0, .modified = true},
               {.kind = OpKind::kCreate, .tensor = 1},
               {.kind = OpKind::kPut, .tensor = 1, .modified = true},
               {.kind = OpKind::kCompute, .time = milliseconds(5)},
               {.kind = OpKind::kCreate, .tensor = 2}};
  auto setup = WithHarvest({{milliseconds(0), GiB(1)}});
  setup.budget = MiB(16);
  setup.pools.push_back(setup.pools[0]);
  const auto stall = [&] {
    const Outcome outcome = Simulate(trace, setup);
    EXPECT_EQ(outcome.failure, "");
    return core::Milliseconds(outcome.stall);
  };
  EXPECT_NEAR(stall(), 2 * kPeerCopy, 0.01);
  setup.pools[1].limits.clear();  // of fixed size it has a link of its own
  EXPECT_NEAR(stall(), kPeerCopy, 0.01);
}

// The device holds one tensor of 8 MiB and the host another; the third lies with other nodes, whose
// link is as fast as the host's.
Setup WithLenders(std::vector<ChunksTaken> taken) {
  Setup setup = *SetupFor("demand-lru", Simple(), MiB(8));
  setup.host = MiB(8);
  ExtraPool lent{core::PoolKind::kRemote, GiB(1), 1e9, 1e9, {{milliseconds(0), GiB(1)}}};
  lent.latency = core::Duration{0};
  lent.chunk_changed = milliseconds(40);
  lent.taken = std::move(taken);
  setup.pools = {std::move(lent)};
  return setup;
}

// 0 leaves for 1 and that for 2, which is freed, and 0 too; 1 is read 200 ms later.
Trace LiesWithLenders() {
  Trace trace;
  trace.tensors = {{0, MiB(8), ""}, {0, MiB(8), ""}, {0, MiB(8), ""}};
  trace.ops = {
      {.kind = OpKind::kCreate, .tensor = 0}, {.kind = OpKind::kPut, .tensor = 0, .modified = true},
      {.kind = OpKind::kCreate, .tensor = 1}, {.kind = OpKind::kPut, .tensor = 1, .modified = true},
      {.kind = OpKind::kCreate, .tensor = 2}, {.kind = OpKind::kFree, .tensor = 2},
      {.kind = OpKind::kFree, .tensor = 0},   {.kind = OpKind::kCompute, .time = milliseconds(200)},
      {.kind = OpKind::kGet, .tensor = 1},    {.kind = OpKind::kPut, .tensor = 1}};
  return trace;
}

constexpr double kCopy = 8.388608;  // over one link, in ms

TEST(LentTest, WhatTheHostDoesNotTakeGoesOverBothLinksOnceAChunkIsBorrowed) {
  const Outcome outcome = Simulate(LiesWithLenders(), WithLenders({}));
  ASSERT_EQ(outcome.failure, "");
  // 0 out; the chunk and 1 out; 1 in.
  EXPECT_NEAR(core::Milliseconds(outcome.stall), kCopy + (40 + 2 * kCopy) + 2 * kCopy, 2.5);
  ASSERT_EQ(outcome.harvests.size(), 1u);
  EXPECT_GT(outcome.harvests[0].useful, 0.2 * 0x1p23);
}

TEST(LentTest, WhatLiesInARecalledChunkMovesOnToTheHost) {
  const Outcome kept = Simulate(LiesWithLenders(), WithLenders({}));
  const Outcome outcome = Simulate(LiesWithLenders(), WithLenders({{milliseconds(120), 2}}));
  ASSERT_EQ(outcome.failure, "");
  EXPECT_NEAR(core::Milliseconds(kept.stall - outcome.stall), kCopy, 0.01) << "one link less";
}

TEST(LentTest, AReplayThatGetsWhatWasLostFailsAndSaysSo) {
  const Outcome outcome =
      Simulate(LiesWithLenders(), WithLenders({{milliseconds(120), 2, /*lost=*/true}}));
  EXPECT_NE(outcome.failure.find("which lost them"), std::string::npos) << outcome.failure;
  EXPECT_FALSE(outcome.endless);
}

TEST(LentTest, AGetOfWhatIsLostMeanwhileFails) {
  const Outcome kept = Simulate(LiesWithLenders(), WithLenders({}));
  const core::Duration at = kept.time - milliseconds(2);
  const Outcome outcome = Simulate(LiesWithLenders(), WithLenders({{at, 2, /*lost=*/true}}));
  EXPECT_NE(outcome.failure.find("lost with its chunk"), std::string::npos) << outcome.failure;
}

TEST(LentTest, NothingIsBorrowedThatNobodyLends) {
  auto setup = WithLenders({});
  setup.pools[0].limits.clear();
  const Outcome outcome = Simulate(LiesWithLenders(), setup);
  EXPECT_NE(outcome.failure, "");
}

// Half of what lives at once has no place on the device, and a fourth none on the host either.
TEST(LentTest, ATraceUnderPressureLivesOnWhatOthersLend) {
  const Trace trace = *Load({.name = "gpt2-small", .iterations = 3});
  const core::Bytes all = trace.Footprint();
  auto setup = *SetupFor("value", kHardware[0], core::Bytes(all.count() / 2));
  setup.host = core::Bytes(all.count() / 4).RoundUp(MiB(64));
  EXPECT_NE(Simulate(trace, setup).failure, "");
  setup.pools = {{core::PoolKind::kRemote, all, 1.2e9, 1.2e9, {{milliseconds(0), all}}}};
  const Outcome slow = Simulate(trace, setup);
  ASSERT_EQ(slow.failure, "");
  EXPECT_GT(slow.harvests[0].useful, 0);
  setup.pools[0].in = setup.pools[0].out = 12e9;
  const Outcome fast = Simulate(trace, setup);
  ASSERT_EQ(fast.failure, "");
  EXPECT_LT(fast.stall, slow.stall);
  // What the host takes does not go over the network.
  const auto lent = [](const Outcome& outcome) {
    return outcome.harvests[0].held / core::Seconds(outcome.time);
  };
  EXPECT_LT(lent(fast), 0.5 * static_cast<double>(all.count()));
}

}  // namespace
}  // namespace ravenstore::sim
