// Tickets: what is said of an older put is not said of the last. With an older put's ticket a move
// to another device copied bytes that the last put's stream had still to write.
#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "core/planner.h"
#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr DeviceId kDevice{0};

TEST(PlannerTicketTest, AMoveToAnotherDeviceDoesNotBeginWithAnOlderPutsTicket) {
  Script s({.devices = 2});
  World& world = s.world();
  s.Create("A", KiB(4));
  const Handle a = s.At("A");
  world.Write(a);
  world.Put(a, {});
  world.PollLog(s.me());  // the first put's ticket is waited for
  world.RunStream(a);     // and reached, which nobody has looked at yet
  ASSERT_TRUE(world.Get(a, kDevice, seconds(1)));
  world.Write(a);
  world.Put(a, {});
  ASSERT_TRUE(world.Get(a, DeviceId{1}, seconds(1)));
  s.Poll();
  EXPECT_FALSE(s.IsCopying("A"));  // the second write has not run
  s.Pass(milliseconds(5)).Poll();
  EXPECT_FALSE(s.IsCopying("A"));
  s.Use("A").Poll();
  ASSERT_TRUE(s.IsCopying("A"));
  s.AllCopiesDone().Use("A");  // and finds what the second wrote
  EXPECT_EQ(s.StateOf("A"), State::kInUse);
  EXPECT_EQ(world.DeviceOf(a), DeviceId{1});
}

TEST(PlannerTicketTest, AFreeWaitsForItsOwnTicketNotAnOlderPuts) {
  Script s;
  World& world = s.world();
  s.Create("A", KiB(4));
  const Handle a = s.At("A");
  world.Write(a);
  world.Put(a, {});
  world.PollLog(s.me());
  world.RunStream(a);
  ASSERT_TRUE(world.Get(a, kDevice, seconds(1)));
  world.Write(a);
  ASSERT_TRUE(world.Free(a));
  s.Poll().Pass(milliseconds(5)).Poll();
  EXPECT_EQ(s.stats().frees, 0u);
  EXPECT_EQ(s.View("A").residency, Residency::kOnDevice);
  s.Use("A").Poll();  // ends the test if its place was given up
  EXPECT_EQ(s.StateOf("A"), State::kFreed);
  EXPECT_EQ(s.stats().frees, 1u);
}

TEST(PlannerTicketTest, WhatWasStreamCompleteBeforeTheLastPutIsNotEvicted) {
  Script s({.capacity = KiB(4)});
  World& world = s.world();
  s.Create("A", KiB(4));
  const Handle a = s.At("A");
  world.Write(a);
  world.Put(a, {});
  world.PollLog(s.me());
  world.RunStream(a);
  ASSERT_TRUE(world.Get(a, kDevice, seconds(1)));
  world.Write(a);
  world.Put(a, {});
  s.Create("B", KiB(4));
  EXPECT_FALSE(s.IsCopying("A"));
  s.Use("A").Poll();
  ASSERT_TRUE(s.IsCopying("A"));
  s.AllCopiesDone();
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
}

// A planner without a world, with one tensor of 4 KiB that has all of the first device.
class PlannerStreamCompleteTest : public testing::Test {
 protected:
  static constexpr ClientId kClient{1};

  PlannerStreamCompleteTest() {
    Tell(TenantLimits{TenantId{1}, {KiB(4), KiB(64)}});
    Tell(ClientAttached{kClient, TenantId{1}, {KiB(4), KiB(64)}});
    Tell(PoolGrown{kHostPool, Bytes(0), KiB(64)});
    Create(0);
    Tell(SlabAdded{kClient, kDevice, Bytes(0), KiB(4)});
    tensor_ = planner_.Find(kClient, SlotId{0});
  }
  void Tell(const Event& event) { planner_.Apply(event, Tick(seconds(1)), &plan_); }
  void Create(uint32_t slot) {
    Tell(CreateRequested{kClient, SlotId{slot}, KiB(4), kDevice, kNoName, Tick(seconds(9)), false});
  }
  // Whether the tensor is to be copied out, for its client's fetch on another device or not.
  bool CopiesOut(bool held) const {
    return std::any_of(plan_.begin(), plan_.end(), [&](const Action& action) {
      const auto* out = std::get_if<Move>(&action);
      return out != nullptr && out->tensor == tensor_ &&
             (out->source == Move::Source::kIsHeld) == held;
    });
  }
  TensorId tensor() const { return tensor_; }

 private:
  static PlannerOptions MakeOptions() {
    PlannerOptions options;
    options.slab = options.granularity = KiB(4);
    options.device_capacity = {KiB(4), KiB(4)};
    options.arena = {KiB(4), KiB(4)};
    options.host_capacity = options.host_step = KiB(64);
    options.prefetch = options.preclean = false;
    return options;
  }

  Planner planner_{MakeOptions()};
  Plan plan_;
  TensorId tensor_ = kNoTensor;
};

TEST_F(PlannerStreamCompleteTest, OnlyAQuietAfterTheLastPutLetsATensorMakeWay) {
  Tell(PutSeen{tensor(), 1, {}});
  Tell(StreamComplete{tensor()});
  // The log tells of a get and of another put at once, whose ticket is open.
  Tell(GetSeen{tensor()});
  Tell(PutSeen{tensor(), 2, {}});
  Create(1);
  EXPECT_FALSE(CopiesOut(false));
  Tell(StreamComplete{tensor()});
  EXPECT_TRUE(CopiesOut(false));
}

TEST_F(PlannerStreamCompleteTest, OnlyAQuietAfterTheLastPutLetsATensorMoveToAnotherDevice) {
  Tell(PutSeen{tensor(), 1, {}});
  Tell(StreamComplete{tensor()});
  Tell(PutSeen{tensor(), 2, {}});
  Tell(FetchRequested{tensor(), DeviceId{1}, Tick(seconds(9))});
  EXPECT_FALSE(CopiesOut(true));
  Tell(StreamComplete{tensor()});
  EXPECT_TRUE(CopiesOut(true));
}

}  // namespace
}  // namespace ravenstore::core
