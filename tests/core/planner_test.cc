#include "core/planner.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// ---- Room.

TEST(PlannerTest, KeepsVictimUntilCopyCompletes) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6)).Create("B", KiB(6));
  EXPECT_EQ(s.StateOf("A"), State::kLeaving);
  EXPECT_EQ(s.StateOf("B"), State::kWaiting);
  s.CopyDone("A");
  EXPECT_EQ(s.StateOf("A"), State::kAway);
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
}

TEST(PlannerTest, BringsBackWhatLeftWithItsBytes) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6)).Create("B", KiB(6)).CopyDone("A").Put("B");
  s.Get("A").CopyDone("B");
  EXPECT_EQ(s.StateOf("A"), State::kInUse);  // promised: only its stream waits for the bytes
  EXPECT_TRUE(s.View("A").residency == Residency::kArriving);
  s.CopyDone("A").Use("A");
  EXPECT_TRUE(s.View("A").residency == Residency::kOnDevice);
  EXPECT_EQ(s.stats().misses, 1u);
}

TEST(PlannerTest, AGetRescuesWhatIsLeaving) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6)).Create("B", KiB(6));
  s.Get("A");
  EXPECT_EQ(s.StateOf("A"), State::kInUse);
  s.Put("A");  // the copy under way is torn now
  s.CopyDone("A");
  EXPECT_EQ(s.stats().rescues, 1u);
  // It leaves again, with what was written last.
  EXPECT_EQ(s.StateOf("A"), State::kLeaving);
  s.CopyDone("A");
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
  s.Free("B").Get("A").CopyDone("A").Use("A");
}

TEST(PlannerTest, DroppingACleanTensorNeedsNoCopy) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6)).Create("B", KiB(6)).CopyDone("A").Free("B");
  s.Get("A").CopyDone("A").PutUnchanged("A");
  s.Create("C", KiB(6));
  EXPECT_EQ(s.StateOf("A"), State::kAway);
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
  EXPECT_EQ(s.stats().drops_clean, 1u);
  s.Free("C").Get("A").CopyDone("A").Use("A");
}

TEST(PlannerTest, AChangedTensorIsCopiedAgain) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6)).Create("B", KiB(6)).CopyDone("A").Free("B");
  s.Get("A").CopyDone("A").Put("A");
  s.Create("C", KiB(6));
  EXPECT_EQ(s.StateOf("A"), State::kLeaving);
}

TEST(PlannerTest, WhatIsNotNeededAgainIsDroppedUnread) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6), NotNeeded()).Create("B", KiB(6));
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
  s.Free("B").Get("A");
  EXPECT_EQ(s.StateOf("A"), State::kLost);
}

TEST(PlannerTest, InUseTensorsStay) {
  Script s({.capacity = KiB(8)});
  s.Create("A", KiB(6)).Create("B", KiB(6));
  EXPECT_EQ(s.StateOf("A"), State::kInUse);
  EXPECT_EQ(s.StateOf("B"), State::kWaiting);
  s.Put("A");
  EXPECT_EQ(s.StateOf("A"), State::kLeaving);
}

TEST(PlannerTest, WaitsForTheStreamBeforeItCopies) {
  Script s({.capacity = KiB(8)});
  s.Create("A", KiB(6));
  s.world().Write(s.At("A"));
  s.world().Put(s.At("A"), {});  // its stream is not done with it
  s.Create("B", KiB(6)).Pass(milliseconds(10));
  EXPECT_EQ(s.StateOf("A"), State::kIdle);
  s.Use("A").Poll();
  EXPECT_EQ(s.StateOf("A"), State::kLeaving);
}

TEST(PlannerTest, RequestsAreServedInTheirOrder) {
  Script s({.capacity = KiB(8)});
  s.Create("A", KiB(6)).Create("large", KiB(8)).Create("small", KiB(1));
  EXPECT_EQ(s.StateOf("large"), State::kWaiting);
  EXPECT_EQ(s.StateOf("small"), State::kWaiting);  // it would fit, but large would starve
  s.Free("A");
  EXPECT_EQ(s.StateOf("large"), State::kInUse);
}

// ---- Refusals.

TEST(PlannerTest, OutOfMemoryNamesTheHolders) {
  Script s({.capacity = KiB(8)});
  s.Create("A", KiB(6)).Create("B", KiB(6)).Pass(seconds(2));
  EXPECT_EQ(s.StateOf("B"), State::kRefused);
  EXPECT_EQ(s.world().ErrorOf(s.At("B")).code, ErrorCode::kOutOfMemory);
  EXPECT_NE(s.Words("B").find("client 1 holds 6.0 KiB (6.0 KiB in use)"), std::string::npos)
      << s.Words("B");
}

TEST(PlannerTest, ATensorLargerThanTheBudgetIsRefusedAtOnce) {
  Script s({.capacity = KiB(8)});
  s.Create("A", KiB(9));
  EXPECT_EQ(s.StateOf("A"), State::kRefused);
  EXPECT_NE(s.Words("A").find("device_budget"), std::string::npos);
  s.Create("none", Bytes(0));
  EXPECT_EQ(s.world().ErrorOf(s.At("none")).code, ErrorCode::kInvalidArgument);
}

TEST(PlannerTest, TheDeadlineIsKept) {
  Script s({.capacity = KiB(8)});
  s.Create("A", KiB(6)).Create("B", KiB(6)).Pass(milliseconds(999));
  EXPECT_EQ(s.StateOf("B"), State::kWaiting);
  s.Pass(milliseconds(1));
  EXPECT_EQ(s.StateOf("B"), State::kRefused);
}

TEST(PlannerTest, ADeniedFetchLeavesTheTensorAway) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6)).Create("B", KiB(6)).CopyDone("A");
  s.Get("A").Pass(seconds(2));
  EXPECT_EQ(s.StateOf("A"), State::kAway);
  EXPECT_EQ(s.world().ErrorOf(s.At("A")).code, ErrorCode::kOutOfMemory);
  s.Free("B").Get("A").CopyDone("A").Use("A");
}

TEST(PlannerTest, FailFastDoesNotWaitForCopies) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6)).FailFast(true).Create("B", KiB(6));
  EXPECT_EQ(s.StateOf("B"), State::kRefused);
  s.Create("C", KiB(1));
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
}

TEST(PlannerTest, FailFastTakesWhatIsFreeToDrop) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6), NotNeeded()).FailFast(true).Create("B", KiB(6));
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
}

TEST(PlannerTest, FailFastDoesNotWaitBehindOneThatDoes) {
  Script s({.capacity = KiB(8)});
  s.Create("A", KiB(6)).Create("patient", KiB(6)).FailFast(true).Create("hasty", KiB(1));
  EXPECT_EQ(s.StateOf("patient"), State::kWaiting);
  EXPECT_EQ(s.StateOf("hasty"), State::kRefused);
}

TEST(PlannerTest, FailFastDoesNotWaitForAnothersSlab) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6));
  const ClientId other = s.world().Attach(Script::kTenant, {KiB(8), KiB(1024)});
  s.As(other).FailFast(true).Create("B", KiB(6));
  EXPECT_EQ(s.StateOf("B"), State::kRefused);
}

TEST(PlannerTest, WhatIsLongLivedGathersAtOneEnd) {
  Script s({.capacity = KiB(16)});
  for (const char* name : {"A", "B", "C", "D"}) s.Create(name, KiB(2));
  s.Free("A").Free("C").Create("stays", KiB(2));
  EXPECT_TRUE(s.View("stays").device_offset < s.View("B").device_offset);
  s.Free("stays").LongLived(true).Create("stays", KiB(2));
  EXPECT_TRUE(s.View("stays").device_offset > s.View("B").device_offset) << "the highest that fits";
}

TEST(PlannerTest, FailStuckDoesNotWaitForItsOwnClient) {
  Script s({.capacity = KiB(8)});
  s.Create("A", KiB(6)).FailStuck(true).Create("B", KiB(6));
  EXPECT_EQ(s.StateOf("B"), State::kWaiting) << "what was freed before may not be known yet";
  s.Pass(milliseconds(5));
  EXPECT_EQ(s.StateOf("B"), State::kRefused);
  s.Create("C", KiB(1));
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
}

TEST(PlannerTest, FailStuckWaitsForCopiesAndStreams) {
  Script s({.capacity = KiB(8)});
  World& world = s.world();
  s.Create("A", KiB(6));
  world.Write(s.At("A"));
  world.Put(s.At("A"), {});
  s.FailStuck(true).Create("B", KiB(6)).Pass(milliseconds(5));
  EXPECT_EQ(s.StateOf("B"), State::kWaiting) << "A's stream still uses it";
  s.Use("A").Poll().Pass(milliseconds(5));
  ASSERT_TRUE(s.IsCopying("A"));
  EXPECT_EQ(s.StateOf("B"), State::kWaiting);
  s.AllCopiesDone();
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
}

TEST(PlannerTest, FailStuckWaitsForRoomOnTheHost) {
  Script s({.capacity = KiB(8), .host = KiB(8)});
  s.Make("away", KiB(6)).Create("A", KiB(6)).AllCopiesDone().Put("A").FailStuck(true);
  s.Create("B", KiB(6)).Pass(milliseconds(20));
  EXPECT_EQ(s.StateOf("B"), State::kWaiting);
  s.Free("away").Pass(milliseconds(20)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
}

TEST(PlannerTest, FailStuckWaitsForOtherClients) {
  Script s({.capacity = KiB(8), .slab = KiB(2)});
  s.Create("A", KiB(6));
  const ClientId first = s.me();
  s.As(s.world().Attach(Script::kTenant, {KiB(8), KiB(1024)})).FailStuck(true);
  s.Create("B", KiB(6)).Pass(milliseconds(5));
  EXPECT_EQ(s.StateOf("B"), State::kWaiting);
  s.As(first).Free("A").Pass(milliseconds(5));
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
}

// ---- Slabs and budgets.

TEST(PlannerTest, ABudgetSmallerThanASlabIsUsedInFull) {
  Script s({.capacity = KiB(3), .slab = KiB(64)});
  s.Create("A", KiB(3));
  EXPECT_EQ(s.StateOf("A"), State::kInUse);
  EXPECT_EQ(s.Held(), KiB(3));
}

TEST(PlannerTest, ATensorLargerThanASlabSpansSlabs) {
  Script s({.capacity = KiB(32), .slab = KiB(4)});
  s.Create("A", KiB(3)).Create("B", KiB(13));
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
  EXPECT_LE(s.Held(), KiB(17));
}

TEST(PlannerTest, ALoweredLimitGivesSlabsBack) {
  Script s({.capacity = KiB(16), .slab = KiB(4)});
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, KiB(4));
  EXPECT_EQ(s.Held(), KiB(16));
  s.Budget(KiB(8)).AllCopiesDone().Pass(milliseconds(5));
  EXPECT_EQ(s.Held(), KiB(8));
  s.Create("E", KiB(4)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("E"), State::kInUse);
  EXPECT_EQ(s.Held(), KiB(8));
  s.Put("E").Get("A").AllCopiesDone().Use("A");
}

TEST(PlannerTest, ADeviceThatOthersNeedGivesSlabsBackAndMayHaveThemAgain) {
  Script s({.capacity = KiB(16), .slab = KiB(4)});
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, KiB(4));
  EXPECT_EQ(s.Held(), KiB(16));
  s.DeviceCapacity(KiB(8)).AllCopiesDone().Pass(milliseconds(5));
  EXPECT_EQ(s.Held(), KiB(8));
  s.Create("E", KiB(4)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("E"), State::kInUse);
  EXPECT_EQ(s.Held(), KiB(8));
  s.Put("E").DeviceCapacity(KiB(64)).Create("F", KiB(8)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("F"), State::kInUse);
  EXPECT_EQ(s.Held(), KiB(16));
}

TEST(PlannerTest, SlabsAndTheBudgetsRestServeTogetherWhatNeitherDoesAlone) {
  Script s({.capacity = KiB(8), .slab = KiB(2)});
  for (const char* name : {"A", "B", "C"}) s.Make(name, KiB(2));
  EXPECT_EQ(s.Held(), KiB(6));
  s.Create("D", KiB(8)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("D"), State::kInUse);
  EXPECT_EQ(s.Held(), KiB(8));
  s.Free("D").Get("B").AllCopiesDone().Use("B");
}

TEST(PlannerTest, ATensorInUseInTheLastSlabKeepsTheRestFromServing) {
  Script s({.capacity = KiB(8), .slab = KiB(2)});
  s.Make("A", KiB(2)).Make("B", KiB(2)).Create("C", KiB(2));
  s.FailFast(true).Create("D", KiB(8));
  EXPECT_EQ(s.StateOf("D"), State::kRefused);
  EXPECT_EQ(s.StateOf("A"), State::kIdle) << "nobody left in vain";
  EXPECT_EQ(s.Held(), KiB(6));
}

TEST(PlannerTest, ATrimGivesEmptySlabsBackUntilOneIsNeeded) {
  Script s({.capacity = KiB(16), .slab = KiB(4)});
  for (const char* name : {"A", "B", "C"}) s.Make(name, KiB(4));
  s.Free("A").Trim().Pass(milliseconds(5));
  EXPECT_EQ(s.Held(), KiB(8));
  s.Free("B").Pass(milliseconds(5));
  EXPECT_EQ(s.Held(), KiB(4));
  s.Make("D", KiB(4)).Free("D").Pass(milliseconds(5));
  EXPECT_EQ(s.Held(), KiB(8)) << "kept for the next";
}

TEST(PlannerTest, ALimitLoweredWhileAllIsInUseTakesEffectWithThePuts) {
  Script s({.capacity = KiB(8), .slab = KiB(4)});
  s.Create("A", KiB(4)).Create("B", KiB(4)).Budget(KiB(4));
  EXPECT_EQ(s.Held(), KiB(8));
  s.Put("A").Pass(milliseconds(5)).AllCopiesDone();
  EXPECT_EQ(s.Held(), KiB(4));
  EXPECT_EQ(s.StateOf("A"), State::kAway);
}

TEST(PlannerTest, AFailedSlabIsAskedForAgainLater) {
  Script s({.capacity = KiB(8)});
  s.SlabsCome(false).Create("A", KiB(4));
  ASSERT_EQ(s.world().slab_jobs().size(), 1u);
  s.world().FinishSlab(0, false);
  EXPECT_EQ(s.Held(), Bytes(0));
  s.Pass(milliseconds(50));
  EXPECT_TRUE(s.world().slab_jobs().empty());
  s.Pass(milliseconds(60)).SlabsCome(true);
  EXPECT_EQ(s.StateOf("A"), State::kInUse);
}

TEST(PlannerTest, ReclaimsSlabsFromAnIdleClientOfTheTenant) {
  Script s({.capacity = KiB(8), .slab = KiB(4)});
  s.Make("A", KiB(4)).Make("B", KiB(4));
  const ClientId first = s.me();
  s.As(s.world().Attach(Script::kTenant, {KiB(8), KiB(1024)})).Create("C", KiB(4));
  EXPECT_EQ(s.StateOf("C"), State::kWaiting);
  s.AllCopiesDone();
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
  EXPECT_EQ(s.Held(), KiB(4));
  s.As(first);
  EXPECT_EQ(s.Held(), KiB(4));  // only as much as was needed
}

TEST(PlannerTest, OtherTenantsDoNotPayForAFullTenant) {
  Script s({.capacity = KiB(16), .slab = KiB(4)});
  constexpr TenantId kSmall{2};
  s.world().SetTenant(kSmall, {KiB(4), KiB(1024)});
  s.Make("A", KiB(4));
  s.As(s.world().Attach(kSmall, {KiB(16), KiB(1024)})).Create("B", KiB(4)).Create("C", KiB(4));
  s.Pass(milliseconds(100));
  EXPECT_EQ(s.StateOf("C"), State::kWaiting);
  EXPECT_EQ(s.StateOf("A"), State::kIdle);
}

// ---- The host.

TEST(PlannerTest, AFullHostGivesUpCopiesOfTensorsThatAreOnTheirDevice) {
  Script s({.capacity = KiB(12), .slab = KiB(4), .host = KiB(4), .host_budget = KiB(4)});
  s.Make("A", KiB(4)).Make("B", KiB(4)).Create("C", KiB(4)).Create("D", KiB(4)).CopyDone("A");
  EXPECT_EQ(s.StateOf("D"), State::kInUse);
  s.Free("D").Get("A").CopyDone("A");
  EXPECT_TRUE(s.View("A").has_copy);
  // A is in use, so B must leave, into the room of A's copy.
  s.Create("E", KiB(4));
  EXPECT_EQ(s.StateOf("B"), State::kLeaving);
  EXPECT_FALSE(s.View("A").has_copy);
  s.CopyDone("B").Use("A");
  EXPECT_EQ(s.StateOf("E"), State::kInUse);
}

TEST(PlannerTest, AHostBudgetIsNotExceeded) {
  Script s({.capacity = KiB(8), .slab = KiB(4), .host_budget = KiB(4)});
  s.Make("A", KiB(4)).Make("B", KiB(4)).Create("C", KiB(4)).CopyDone("A").Create("D", KiB(4));
  s.Pass(milliseconds(100));
  EXPECT_EQ(s.StateOf("B"), State::kIdle);
  EXPECT_EQ(s.StateOf("D"), State::kWaiting);
  EXPECT_EQ(s.world().planner().View(s.me()).host_used, KiB(4));
}

// ---- Races.

TEST(PlannerTest, AFailedCopyThatWasPromisedLosesTheTensor) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6)).Create("B", KiB(6)).CopyDone("A").Free("B").Get("A").CopyFails("A");
  EXPECT_EQ(s.StateOf("A"), State::kLost);
  s.Free("A");
  EXPECT_EQ(s.StateOf("A"), State::kFreed);
}

TEST(PlannerTest, AFreeWaitsForTheCopyOut) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6)).Create("B", KiB(6)).Free("A");
  EXPECT_EQ(s.StateOf("A"), State::kWaiting);
  EXPECT_EQ(s.StateOf("B"), State::kWaiting);  // the bytes are still read
  s.CopyDone("A");
  EXPECT_EQ(s.StateOf("A"), State::kFreed);
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
  EXPECT_EQ(s.world().planner().HostTier().used, Bytes(0));
}

TEST(PlannerTest, AFreeWaitsForTheCopyIn) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6)).Create("B", KiB(6)).CopyDone("A").Free("B").Get("A").Free("A");
  EXPECT_EQ(s.StateOf("A"), State::kWaiting);
  s.CopyDone("A").Use("A").Poll();
  EXPECT_EQ(s.StateOf("A"), State::kFreed);
  EXPECT_EQ(s.world().planner().HostTier().used, Bytes(0));
}

TEST(PlannerTest, AClientGoneInTheMiddleOfACopyKeepsItsHostRoomUntilTheEnd) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6)).Create("B", KiB(6));
  s.world().Kill(s.me());
  EXPECT_EQ(s.world().planner().HostTier().used, KiB(6));
  EXPECT_EQ(s.world().planner().DeviceTier(DeviceId{0}).held, Bytes(0));
  s.world().FinishCopy(0, true);
  EXPECT_EQ(s.world().planner().HostTier().used, Bytes(0));
  EXPECT_EQ(s.stats().waiting, 0u);
}

const Budgets kForTenThousand{MiB(512), MiB(64)};

PlannerOptions ForTenThousand() {
  PlannerOptions options;
  options.device_capacity = {kForTenThousand.device};
  options.arena = {GiB(2)};
  options.host_capacity = kForTenThousand.host;
  return options;
}

TEST(PlannerTest, TheRequestsOfAClientThatIsGoneAreForgottenSomeAtATime) {
  constexpr uint32_t kRequests = 10000;
  Planner planner(ForTenThousand());
  Plan plan;  // nothing of it is done
  const Tick now{std::chrono::seconds(1)};
  planner.Apply(TenantLimits{TenantId{1}, kForTenThousand}, now, &plan);
  planner.Apply(ClientAttached{ClientId{1}, TenantId{1}, kForTenThousand}, now, &plan);
  for (uint32_t i = 0; i < kRequests; ++i) {
    const Tick deadline = i % 2 == 0 ? now : kNever;
    planner.Apply(
        CreateRequested{ClientId{1}, SlotId{i}, KiB(4), DeviceId{0}, kNoName, deadline, false}, now,
        &plan);
  }
  ASSERT_EQ(planner.stats().waiting, kRequests);
  planner.Apply(ClientGone{ClientId{1}}, now, &plan);
  EXPECT_GT(planner.stats().waiting, kRequests / 2);
  for (int i = 0; i < 20; ++i) {
    planner.CheckInvariants();
    if (planner.NextWake() <= now) planner.Apply(TimePassed{}, now, &plan);
  }
  EXPECT_EQ(planner.stats().waiting, 0u);
  EXPECT_GT(planner.NextWake(), now);
}

TEST(PlannerTest, TheTensorsOfAClientThatIsGoneAreForgottenSomeAtATime) {
  constexpr uint32_t kTensors = 10000;
  Planner planner(ForTenThousand());
  const Tick now{std::chrono::seconds(1)};
  Plan plan;
  TensorId last = kNoTensor;
  size_t discarded = 0;
  const auto tell = [&](const Event& event) {
    planner.Apply(event, now, &plan);
    for (size_t i = 0; i < plan.size(); ++i) {
      const Action action = plan[i];
      if (const auto* slab = std::get_if<AddSlab>(&action))
        planner.Apply(SlabAdded{slab->client, slab->device, slab->offset, slab->size}, now, &plan);
      if (const auto* grant = std::get_if<AllocReply>(&action)) last = grant->tensor;
      if (std::holds_alternative<DeferDestroy>(action)) ++discarded;
    }
    plan.clear();
  };
  const auto create = [&](ClientId client, uint32_t slot) {
    tell(CreateRequested{client, SlotId{slot}, KiB(4), DeviceId{0}, kNoName, kNever, false});
  };
  tell(TenantLimits{TenantId{1}, kForTenThousand});
  tell(ClientAttached{ClientId{1}, TenantId{1}, kForTenThousand});
  tell(ClientAttached{ClientId{2}, TenantId{1}, kForTenThousand});
  for (uint32_t i = 0; i < kTensors; ++i) create(ClientId{1}, i);
  const TensorId of_the_first = last;
  ASSERT_TRUE(planner.Knows(of_the_first));
  tell(ClientGone{ClientId{1}});
  EXPECT_FALSE(planner.Knows(of_the_first));
  uint32_t slot = 0;
  std::vector<TensorView> of_the_second;
  EXPECT_FALSE(planner.List(ClientId{2}, &slot, kTensors, &of_the_second));
  EXPECT_TRUE(of_the_second.empty());
  int passes = 0;
  for (; discarded == 0 && passes < 100; ++passes) {
    planner.CheckInvariants();
    create(ClientId{2}, static_cast<uint32_t>(passes));  // the other is served meanwhile
    EXPECT_EQ(planner.View(ClientId{2}).tensors, static_cast<uint64_t>(passes) + 1);
    ASSERT_LE(planner.NextWake(), now);
    tell(TimePassed{});
  }
  EXPECT_GE(passes, 5);
  EXPECT_EQ(discarded, 1u);
  EXPECT_GT(planner.NextWake(), now);
  planner.CheckInvariants();
}

TEST(PlannerTest, AFetchOnAnotherDeviceMovesAnAwayTensorThere) {
  Script s({.capacity = KiB(8), .devices = 2});
  s.Make("A", KiB(6)).Create("B", KiB(6)).CopyDone("A");
  s.Get("A", DeviceId{1}).CopyDone("A").Use("A");
  EXPECT_EQ(s.StateOf("A"), State::kInUse);
  EXPECT_EQ(s.View("A").device, DeviceId{1});
}

TEST(PlannerTest, AFetchOnAnotherDeviceMovesAResidentTensorThroughTheHost) {
  Script s({.capacity = KiB(8), .devices = 2});
  s.Make("A", KiB(6)).Get("A", DeviceId{1});
  EXPECT_EQ(s.StateOf("A"), State::kWaiting);
  s.CopyDone("A");
  EXPECT_EQ(s.StateOf("A"), State::kInUse);
  s.CopyDone("A").Use("A");
  EXPECT_EQ(s.View("A").device, DeviceId{1});
  s.Create("B", KiB(8));  // all of the first device is free again
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
}

TEST(PlannerTest, EachDeviceHasALinkOfItsOwn) {
  Script s({.capacity = KiB(8), .devices = 2, .links = {1e9, 250e6}});
  const auto copy_back = [&](const std::string& name) {
    return s.world().planner().Explain(s.View(name).id, s.world().now()).copy_back;
  };
  s.Create("A", KiB(6), DeviceId{0}).Create("B", KiB(6), DeviceId{1});
  EXPECT_EQ(copy_back("A"), LinkModel{}.latency + nanoseconds(KiB(6).count()));
  EXPECT_EQ(copy_back("B"), LinkModel{}.latency + nanoseconds(KiB(6).count() * 4));
}

TEST(PlannerTest, TheSameEventsGiveTheSamePlans) {
  const auto tell = [] {
    Script s({.capacity = KiB(12), .slab = KiB(4), .prefetch = true, .preclean = true});
    for (int i = 0; i < 8; ++i) {
      s.Create("T" + std::to_string(i), KiB(3)).AllCopiesDone();
      s.Put("T" + std::to_string(i), Order(-i)).Pass(milliseconds(2));
    }
    for (int i = 7; i >= 0; --i) {
      s.Get("T" + std::to_string(i)).AllCopiesDone().PutUnchanged("T" + std::to_string(i));
    }
    return s.world().TakeTranscript();
  };
  const std::string first = tell();
  EXPECT_GT(first.size(), 500u);
  EXPECT_EQ(first, tell());
}

}  // namespace
}  // namespace ravenstore::core
