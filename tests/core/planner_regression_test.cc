// One test for each bug that was found in the planner, named after what it broke.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/planner.h"
#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr ClientId kClient{1};
constexpr DeviceId kDevice{0};

struct Setting {
  bool prefetch = false;
  bool preclean = false;
  bool host_grows = true;
  Bytes host_step = KiB(64);
  Bytes host_ahead = KiB(64);
  Bytes slab = KiB(64);  // at most the capacity
  uint32_t devices = 1;
};

// A planner without a world: events come in whatever order the test says, as when a pass of the
// daemon's loop tells of many things before it acts on the first proposal.
class Bare {
 public:
  explicit Bare(Bytes capacity, const Setting& setting = {})
      : planner_(MakeOptions(capacity, setting)) {
    Tell(TenantLimits{TenantId{1}, {capacity, KiB(64)}});
    Tell(ClientAttached{kClient, TenantId{1}, {capacity, KiB(64)}});
    const Bytes offset = Take<GrowPool>().offset;
    if (setting.host_grows) Tell(PoolGrown{kHostPool, offset, setting.host_step});
  }
  void Pass(Duration duration) {
    now_ += duration;
    Tell(TimePassed{});
  }

  void Tell(const Event& event) {
    planner_.Apply(event, now_, &plan_);
    planner_.CheckInvariants();
  }
  bool Proposes(const std::function<bool(const Action&)>& is) const {
    return std::any_of(plan_.begin(), plan_.end(), is);
  }
  template <typename Kind>
  bool Has() const {
    return Proposes([](const Action& action) { return std::holds_alternative<Kind>(action); });
  }
  // The first proposal of that kind, taken out of the plan. REQUIRES: there is one.
  template <typename Kind>
  Kind Take() {
    for (auto action = plan_.begin(); action != plan_.end(); ++action) {
      if (const Kind* kind = std::get_if<Kind>(&*action)) {
        const Kind taken = *kind;
        plan_.erase(action);
        return taken;
      }
    }
    ADD_FAILURE() << "no such proposal";
    std::abort();
  }
  // A granted tensor that stays in use.
  TensorId Create(uint32_t slot, Bytes size) {
    Tell(CreateRequested{kClient, SlotId{slot}, size, kDevice, kNoName, now_ + seconds(10), false});
    SlabsCome();
    return Take<AllocReply>().tensor;
  }
  void SlabsCome() {
    while (Has<AddSlab>()) {
      const AddSlab slab = Take<AddSlab>();
      Tell(SlabAdded{slab.client, slab.device, slab.offset, slab.size});
    }
  }
  void Request(uint32_t slot, Bytes size) {
    Tell(CreateRequested{kClient, SlotId{slot}, size, kDevice, kNoName, now_ + seconds(10), false});
  }
  void Put(TensorId tensor, uint32_t writes, NextUse next_use = {}) {
    Tell(PutSeen{tensor, writes, next_use});
    Tell(StreamComplete{tensor});
  }
  // Takes the tensor through the host: afterwards it is on its device, clean and quiet.
  void MakeClean(TensorId tensor, uint32_t writes, Bytes size, uint32_t spare_slot) {
    Request(spare_slot, size);
    const auto out = Take<Move>();
    ASSERT_EQ(out.tensor, tensor);
    Tell(Moved{tensor, Moved::Outcome::kDone});
    Tell(Freed{Take<AllocReply>().tensor});
    Take<Release>();
    Tell(FetchRequested{tensor, kDevice, now_ + seconds(10)});
    Take<FetchReply>();
    Take<Move>();
    Tell(Moved{tensor, Moved::Outcome::kDone});
    Put(tensor, writes);
  }
  Planner& planner() { return planner_; }
  Residency ResidencyOf(TensorId tensor) { return planner_.View(tensor).residency; }

 private:
  static PlannerOptions MakeOptions(Bytes capacity, const Setting& setting) {
    PlannerOptions options;
    options.slab = std::min(setting.slab, capacity);
    options.granularity = Bytes(1024);
    options.device_capacity.assign(setting.devices, capacity);
    options.arena.assign(setting.devices, capacity);
    options.host_capacity = KiB(64);
    options.host_step = setting.host_step;
    options.host_ahead = setting.host_ahead;
    options.prefetch = setting.prefetch;
    options.preclean = setting.preclean;
    options.learn = false;
    return options;
  }

  Planner planner_;
  Plan plan_;
  Tick now_{seconds(1)};
};

TEST(PlannerRegressionTest, ATensorFreedWhileItsDropIsProposedIsReleased) {
  Bare bare(KiB(4));
  const TensorId tensor = bare.Create(0, KiB(4));
  bare.Put(tensor, 1, NotNeeded());
  bare.Request(1, KiB(4));
  bare.Take<Drop>();
  bare.Tell(Freed{tensor});
  bare.Tell(Dropped{tensor, false});  // the lease was Freeing already
  EXPECT_EQ(bare.Take<Release>().tensor, tensor);
  EXPECT_TRUE(bare.Has<AllocReply>());
  EXPECT_FALSE(bare.planner().Knows(tensor));
}

TEST(PlannerRegressionTest, AUseSeenAfterItsDropWasProposedKeepsTheBytes) {
  Bare bare(KiB(4));
  const TensorId tensor = bare.Create(0, KiB(4));
  bare.Put(tensor, 1);
  bare.MakeClean(tensor, 1, KiB(4), 1);
  bare.Request(1, KiB(4));
  EXPECT_EQ(bare.Take<Drop>().tensor, tensor);
  // Before it is carried out the log tells of a get and of a put that wrote, whose word the drop
  // then finds.
  bare.Tell(GetSeen{tensor});
  bare.Put(tensor, 2);
  bare.Tell(Dropped{tensor, true});
  EXPECT_TRUE(bare.ResidencyOf(tensor) == Residency::kOnDevice);
  bare.Tell(FetchRequested{tensor, kDevice, Tick(seconds(20))});
  EXPECT_FALSE(bare.Take<FetchReply>().arriving);
}

TEST(PlannerRegressionTest, AnOldGetOfAPrefetchedTensorDoesNotLoseItWhenTheCopyFails) {
  Bare bare(KiB(8), {.prefetch = true});
  const TensorId tensor = bare.Create(0, KiB(8));
  bare.Put(tensor, 1, Order(1));
  bare.Request(1, KiB(4));
  bare.Take<Move>();
  bare.Tell(Moved{tensor, Moved::Outcome::kDone});
  const TensorId other = bare.Take<AllocReply>().tensor;
  bare.Tell(GetSeen{other});  // tensors are wanted back
  bare.Tell(Freed{other});
  EXPECT_FALSE(bare.Take<Move>().demand);
  bare.Tell(GetSeen{tensor});  // of the use before its put; the log was slow
  bare.Tell(Moved{tensor, Moved::Outcome::kFailed});
  EXPECT_TRUE(bare.ResidencyOf(tensor) == Residency::kAway);
}

TEST(PlannerRegressionTest, AnEmptiedSlabsAddressesAreNotUsedBeforeItIsGone) {
  Script s({.capacity = KiB(8), .slab = KiB(4)});
  s.Make("A", KiB(4)).Make("B", KiB(4)).SlabsCome(false).Budget(KiB(4)).AllCopiesDone();
  std::set<Bytes> leaving;
  for (const auto& job : s.world().slab_jobs()) {
    EXPECT_TRUE(job.kind == World::SlabJob::Kind::kRemove);
    leaving.insert(job.offset);
  }
  EXPECT_FALSE(leaving.empty());
  s.Budget(KiB(12)).Create("C", KiB(4));  // the device has room again once the slabs are gone
  for (const auto& job : s.world().slab_jobs()) {
    if (job.kind == World::SlabJob::Kind::kAdd) {
      EXPECT_FALSE(leaving.contains(job.offset));
    }
  }
  s.SlabsCome(true);
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
}

TEST(PlannerRegressionTest, VictimsThatCannotAllLeaveStay) {
  // The host takes one of the two that would have to go; the first must not go in vain.
  Script s({.capacity = KiB(8), .slab = KiB(8), .host = KiB(4), .host_budget = KiB(4)});
  s.Make("A", KiB(4)).Make("B", KiB(4)).Create("C", KiB(8)).Pass(milliseconds(20));
  EXPECT_EQ(s.StateOf("A"), State::kIdle);
  EXPECT_EQ(s.StateOf("B"), State::kIdle);
  EXPECT_EQ(s.StateOf("C"), State::kWaiting);
  EXPECT_EQ(s.world().planner().HostTier().used, Bytes(0));
  s.Free("B").AllCopiesDone();
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
}

TEST(PlannerRegressionTest, AReclaimThatCannotEmptyASlabDropsNothingOfIt) {
  // Of the slab's two tensors the clean one was dropped and brought back for ever.
  Script s({.capacity = KiB(8),
            .slab = KiB(8),
            .host = KiB(4),
            .host_budget = KiB(4),
            .prefetch = true});
  s.Make("A", KiB(4), Order(1)).Make("B", KiB(4), Order(2));
  s.Create("C", KiB(4)).CopyDone("B").Free("C").Get("B").AllCopiesDone();
  s.PutUnchanged("B", Order(2)).Get("A").Put("A", Order(1));
  const uint64_t drops = s.stats().drops_clean;
  s.As(s.world().Attach(Script::kTenant, {KiB(8), KiB(4)})).Create("D", KiB(8));
  s.Pass(milliseconds(50));
  EXPECT_EQ(s.StateOf("D"), State::kWaiting);
  EXPECT_EQ(s.stats().drops_clean, drops);
}

TEST(PlannerRegressionTest, AFullHostLetsCleanTensorsLeave) {
  Script s({.capacity = KiB(8), .slab = KiB(8), .host = KiB(4), .host_budget = KiB(4)});
  s.Make("clean", KiB(2)).Make("dirty", KiB(6)).Create("C", KiB(2)).CopyDone("clean").Free("C");
  s.Get("clean").CopyDone("clean").PutUnchanged("clean", Order(1)).Pass(seconds(1));
  ASSERT_TRUE(s.View("clean").has_copy);
  // By its value the large one should go, but the host cannot take it, and to give up the other's
  // copy there would not help.
  s.Create("D", KiB(2));
  EXPECT_EQ(s.StateOf("D"), State::kInUse);
  EXPECT_EQ(s.StateOf("clean"), State::kAway);
  EXPECT_EQ(s.StateOf("dirty"), State::kIdle);
}

TEST(PlannerRegressionTest, PrecleaningDoesNotReplaceOneCopyByAnother) {
  Script s({.capacity = KiB(16),
            .slab = KiB(4),
            .host = KiB(8),
            .host_budget = KiB(8),
            .preclean = true});
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, KiB(4));
  s.Create("E", KiB(4)).AllCopiesDone().Pass(milliseconds(1)).AllCopiesDone();
  const Bytes out = s.stats().out;
  EXPECT_EQ(out, KiB(8));  // the victim, and one ahead: more the host does not hold
  s.Pass(seconds(5)).AllCopiesDone();
  EXPECT_EQ(s.stats().out, out);
}

TEST(PlannerRegressionTest, ACopyRefusedByAnUnseenGetIsNotProposedForEver) {
  Script s({.capacity = KiB(16), .slab = KiB(4), .preclean = true, .in_flight = KiB(4)});
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, KiB(4)).Pass(milliseconds(1));
  s.Create("E", KiB(4));
  ASSERT_EQ(s.StateOf("A"), State::kLeaving);
  ASSERT_FALSE(s.IsCopying("B"));
  // Got, but the daemon has not read the log when its turn to be copied ahead comes.
  s.world().Get(s.At("B"), kDevice, seconds(1));
  s.CopyDone("A").Pass(milliseconds(1));
  EXPECT_FALSE(s.IsCopying("B"));
  EXPECT_TRUE(s.IsCopying("C"));
}

TEST(PlannerRegressionTest, ADeniedMoveLeavesTheTensorWithItsDevice) {
  Script s({.capacity = KiB(8), .devices = 2});
  s.Make("A", KiB(4)).Create("B", KiB(8), DeviceId{1});
  s.world().Get(s.At("A"), DeviceId{1}, milliseconds(5));
  s.Poll().AllCopiesDone().Pass(milliseconds(10));
  EXPECT_EQ(s.StateOf("A"), State::kAway);
  s.Get("A").AllCopiesDone().Use("A");
  EXPECT_EQ(s.StateOf("A"), State::kInUse);
}

TEST(PlannerRegressionTest, AHostThatCannotGrowIsNotAskedAgainAtOnce) {
  Bare bare(KiB(4), {.host_grows = false});
  bare.Tell(PoolGrowFailed{kHostPool});
  const TensorId tensor = bare.Create(0, KiB(4));
  bare.Put(tensor, 1);
  bare.Request(1, KiB(4));
  for (int i = 0; i < 99; ++i) bare.Pass(milliseconds(1));
  EXPECT_FALSE(bare.Has<GrowPool>());
  bare.Pass(milliseconds(1));
  const auto grow = bare.Take<GrowPool>();
  bare.Tell(PoolGrown{kHostPool, grow.offset, grow.size});
  EXPECT_TRUE(bare.Has<Move>());
}

// On a GPU each slab of a first training step waited 17 ms for 64 MiB to be pinned, a second in
// all, for copies that nobody came to need.
TEST(PlannerRegressionTest, WhileSlabsComeThePoolIsNotPinnedAhead) {
  Bare bare(KiB(8), {.host_step = KiB(16)});
  const auto second = bare.Take<GrowPool>();
  bare.Create(0, KiB(4));
  bare.Tell(PoolGrown{kHostPool, second.offset, second.size});
  bare.Pass(milliseconds(9));
  EXPECT_FALSE(bare.Has<GrowPool>());
  bare.Pass(milliseconds(1));
  EXPECT_TRUE(bare.Has<GrowPool>());
}

TEST(PlannerRegressionTest, WithoutNeedCopiesAreMadeAheadOnlyWhereThereIsRoom) {
  Bare bare(KiB(40), {.preclean = true, .host_step = KiB(32), .host_ahead = KiB(16)});
  std::vector<TensorId> tensors;
  for (uint32_t i = 0; i < 10; ++i) tensors.push_back(bare.Create(i, KiB(4)));
  for (uint32_t i = 0; i < 10; ++i) bare.Put(tensors[i], 1, Order(100 - i));
  bare.Pass(milliseconds(20));
  for (int i = 0; i < 4; ++i) bare.Tell(Moved{bare.Take<Move>().tensor, Moved::Outcome::kDone});
  EXPECT_FALSE(bare.Has<Move>());
  EXPECT_FALSE(bare.Has<GrowPool>());
}

TEST(PlannerRegressionTest, WhatMustLeaveIsPinnedForAtOnce) {
  Bare bare(KiB(8), {.host_step = KiB(8)});
  const auto second = bare.Take<GrowPool>();
  TensorId last = bare.Create(0, KiB(8));
  bare.Tell(PoolGrown{kHostPool, second.offset, second.size});
  for (uint32_t i = 1; i <= 2; ++i) {
    bare.Put(last, 1);
    bare.Request(i, KiB(8));
    EXPECT_FALSE(bare.Has<GrowPool>());
    bare.Tell(Moved{bare.Take<Move>().tensor, Moved::Outcome::kDone});
    last = bare.Take<AllocReply>().tensor;
  }
  bare.Put(last, 1);
  bare.Request(3, KiB(8));
  EXPECT_TRUE(bare.Has<GrowPool>());
}

// The poll that was to shrink it came with another's, too early, and was forgotten.
TEST(PlannerRegressionTest, AnArenaThatCouldNotShrinkYetTriesAgain) {
  Bare bare(KiB(40), {.host_step = KiB(16)});
  const auto second = bare.Take<GrowPool>();
  const TensorId tensor = bare.Create(0, KiB(40));
  bare.Put(tensor, 1);
  bare.Pass(milliseconds(8));
  bare.Tell(PoolGrown{kHostPool, second.offset,
                      second.size});  // more is looked at when slabs stop coming
  bare.Tell(DeviceLimit{kDevice, Bytes(0)});
  const auto third = bare.Take<GrowPool>();
  bare.Pass(milliseconds(2));
  bare.Tell(PoolGrown{kHostPool, third.offset, third.size});
  bare.Pass(milliseconds(2));
  EXPECT_TRUE(bare.Has<Move>());
}

TEST(PlannerRegressionTest, ALoweredTenantLimitTakesNoMoreThanItNeeds) {
  Script s({.capacity = KiB(256), .slab = KiB(4)});
  s.Make("A", KiB(4)).Make("B", KiB(4));
  const ClientId second = s.world().Attach(Script::kTenant, {KiB(256), KiB(1024)});
  s.As(second).Make("C", KiB(4)).Make("D", KiB(4));
  s.world().SetTenant(Script::kTenant, {KiB(12), KiB(1024)});
  s.FinishSlabs().AllCopiesDone().Pass(milliseconds(5));
  EXPECT_EQ(s.world().planner().DeviceTier(kDevice).held, KiB(12));
}

TEST(PlannerRegressionTest, AClientAtItsHostBudgetTakesNoCopiesOfOthers) {
  Script s({.capacity = KiB(64), .slab = KiB(4)});
  const ClientId rich = s.world().Attach(Script::kTenant, {KiB(4), KiB(1024)});
  s.As(rich).Make("R", KiB(4)).Create("S", KiB(4)).CopyDone("R").Free("S");
  s.Get("R").CopyDone("R").PutUnchanged("R");
  ASSERT_TRUE(s.View("R").has_copy);
  const ClientId poor = s.world().Attach(Script::kTenant, {KiB(4), Bytes(0)});
  s.As(poor).Make("P", KiB(4)).Create("Q", KiB(4)).Pass(milliseconds(50));
  EXPECT_EQ(s.StateOf("Q"), State::kWaiting);
  EXPECT_TRUE(s.View("R").has_copy);
}

TEST(PlannerRegressionTest, ASlabEmptiedForAnotherGoesToWhoAskedFirst) {
  Script s({.capacity = KiB(8), .slab = KiB(8)});
  s.Make("A", KiB(4)).Make("B", KiB(4));
  const ClientId first = s.me();
  s.As(s.world().Attach(Script::kTenant, {KiB(8), KiB(1024)})).Create("C", KiB(8));
  s.CopyDone("A").As(first).Create("D", KiB(2));
  EXPECT_EQ(s.StateOf("D"), State::kWaiting);  // A's place is promised to C
  s.CopyDone("B");
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
}

TEST(PlannerRegressionTest, TwoClientsThatLackRoomDoNotSwapSlabsForEver) {
  Script s({.capacity = KiB(12), .slab = KiB(4)});
  const ClientId first = s.me();
  const ClientId second = s.world().Attach(Script::kTenant, {KiB(12), KiB(1024)});
  s.Make("A", KiB(4)).Free("A").As(second).Make("B", KiB(4)).Free("B");
  // Each has one slab, one is left, and each wants two: while the first's comes, the second must
  // not take the one that it is to be joined with.
  s.SlabsCome(false).As(first).Create("C", KiB(8)).As(second).Create("D", KiB(8));
  for (const auto& job : s.world().slab_jobs()) {
    EXPECT_TRUE(job.kind == World::SlabJob::Kind::kAdd);
  }
  s.SlabsCome(true);
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
  EXPECT_EQ(s.StateOf("D"), State::kWaiting);
  s.Free("C").Pass(milliseconds(50));
  EXPECT_EQ(s.StateOf("D"), State::kInUse);
}

TEST(PlannerRegressionTest, ARaisedHostBudgetHelpsWhoWaits) {
  Script s({.capacity = KiB(4), .slab = KiB(4)});
  const ClientId poor = s.world().Attach(Script::kTenant, {KiB(4), Bytes(0)});
  s.As(poor).Make("A", KiB(4)).Create("B", KiB(4)).Pass(milliseconds(50));
  ASSERT_EQ(s.StateOf("B"), State::kWaiting);
  s.world().SetClient(poor, {KiB(4), KiB(64)});
  EXPECT_EQ(s.StateOf("A"), State::kLeaving);
  s.CopyDone("A");
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
}

TEST(PlannerRegressionTest, ACopyThatIsDoneHasTheBytesOfTheLastPut) {
  Bare bare(KiB(8), {.preclean = true});
  for (uint32_t slot = 0; slot < 2; ++slot) bare.Put(bare.Create(slot, KiB(4)), 1);
  bare.Request(2, KiB(4));
  bare.Tell(Moved{bare.Take<Move>().tensor, Moved::Outcome::kDone});
  bare.Pass(milliseconds(1));
  const TensorId cleaned = bare.Take<Move>().tensor;
  bare.Put(cleaned, 2);  // in the same pass of the loop: the copy has not begun
  bare.Tell(Moved{cleaned, Moved::Outcome::kDone});
  EXPECT_FALSE(bare.planner().View(cleaned).dirty);
  bare.Put(cleaned, 2);
  EXPECT_FALSE(bare.planner().View(cleaned).dirty);
  bare.Put(cleaned, 3);
  EXPECT_TRUE(bare.planner().View(cleaned).dirty);
}

TEST(PlannerRegressionTest, AFailFastCreateGetsASlabWhileOthersLeave) {
  Script s({.capacity = KiB(8)});
  s.Make("A", KiB(6)).Create("B", KiB(6)).FailFast(true).Create("C", KiB(1));
  EXPECT_EQ(s.StateOf("C"), State::kRefused);  // B is first, and it waits for a copy
  s.CopyDone("A");
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
  s.Create("D", KiB(1));
  EXPECT_EQ(s.StateOf("D"), State::kInUse);
}

// ---- Keep, move or make anew.

TEST(PlannerRecomputeTest, WhatIsRecomputedMoreCheaplyLeavesWithoutACopy) {
  Bare bare(KiB(4));
  const TensorId tensor = bare.Create(0, KiB(4));
  bare.Tell(PutSeen{tensor, 1, {}, std::chrono::microseconds(1)});
  bare.Tell(StreamComplete{tensor});
  bare.Request(1, KiB(4));
  EXPECT_EQ(bare.Take<Drop>().tensor, tensor);
  bare.Tell(Dropped{tensor, true});
  bare.Tell(Freed{bare.Take<AllocReply>().tensor});
  EXPECT_TRUE(bare.planner().Explain(tensor, Tick(seconds(1))).discarded);
  bare.Tell(FetchRequested{tensor, kDevice, Tick(seconds(20))});
  const FetchReply promise = bare.Take<FetchReply>();
  EXPECT_TRUE(promise.recompute);
  EXPECT_FALSE(promise.arriving);
  EXPECT_FALSE(bare.Has<Move>());
  EXPECT_EQ(bare.planner().stats().recomputes, 1u);
  // Made anew and put without that offer it is copied like any other.
  bare.Put(tensor, 2);
  bare.Request(2, KiB(4));
  EXPECT_TRUE(bare.Has<Move>());
}

TEST(PlannerRecomputeTest, WhatIsCopiedMoreCheaplyIsCopied) {
  Bare bare(KiB(4));
  const TensorId tensor = bare.Create(0, KiB(4));
  bare.Tell(PutSeen{tensor, 1, {}, seconds(1)});
  bare.Tell(StreamComplete{tensor});
  bare.Request(1, KiB(4));
  EXPECT_TRUE(bare.Has<Move>());
}

TEST(PlannerRecomputeTest, AGetThatIsFasterKeepsTheBytes) {
  Bare bare(KiB(4));
  const TensorId tensor = bare.Create(0, KiB(4));
  bare.Tell(PutSeen{tensor, 1, {}, std::chrono::microseconds(1)});
  bare.Tell(StreamComplete{tensor});
  bare.Request(1, KiB(4));
  bare.Take<Drop>();
  bare.Tell(Dropped{tensor, false});
  EXPECT_TRUE(bare.ResidencyOf(tensor) == Residency::kOnDevice);
  bare.Put(tensor, 2);
  EXPECT_EQ(bare.Take<Move>().tensor, tensor);
}

TEST(PlannerExplainTest, SaysWhatIsKnownOfATensor) {
  using Future = Explanation::Future;
  Bare bare(KiB(8));
  const Tick now(seconds(1));
  const TensorId hinted = bare.Create(0, KiB(4));
  bare.Put(hinted, 1, At(now + milliseconds(5)));
  const TensorId unknown = bare.Create(1, KiB(4));
  bare.Put(unknown, 1);
  EXPECT_EQ(bare.planner().Explain(hinted, now).future, Future::kHintedTime);
  EXPECT_EQ(bare.planner().Explain(hinted, now).needed_in, milliseconds(5));
  EXPECT_GT(bare.planner().Explain(hinted, now).value, 0);
  EXPECT_EQ(bare.planner().Explain(unknown, now).future, Future::kUnknown);
  EXPECT_GT(bare.planner().Explain(unknown, now).copy_out, Duration{0});
}

TEST(PlannerRegressionTest, AFetchThatWaitsForOthersCopiesGoesOnWhenTheyEnd) {
  constexpr TenantId kTenant{1};
  PlannerOptions options;
  options.slab = options.granularity = KiB(4);
  options.device_capacity = {KiB(16)};
  options.arena = {KiB(16)};
  options.host_capacity = options.host_step = KiB(64);
  options.prefetch = options.preclean = false;
  options.demand_copies = 1;
  Planner planner(options);
  std::vector<Move> arriving;
  std::vector<TensorId> promised;
  std::vector<TensorId> granted;
  // Everything but a copy to the device is done at once.
  const auto tell = [&](const Event& first) {
    std::deque<Event> events = {first};
    for (; !events.empty(); events.pop_front()) {
      Plan plan;
      planner.Apply(events.front(), Tick(seconds(1)), &plan);
      for (const Action& action : plan) {
        if (const auto* slab = std::get_if<AddSlab>(&action))
          events.push_back(SlabAdded{slab->client, slab->device, slab->offset, slab->size});
        if (const auto* grow = std::get_if<GrowPool>(&action))
          events.push_back(PoolGrown{grow->pool, grow->offset, grow->size});
        if (const auto* move = std::get_if<Move>(&action)) {
          if (move->to.pool == PoolOf(kDevice)) {
            arriving.push_back(*move);
          } else {
            events.push_back(Moved{move->tensor, Moved::Outcome::kDone});
          }
        }
        if (const auto* drop = std::get_if<Drop>(&action))
          events.push_back(Dropped{drop->tensor, true});
        if (const auto* grant = std::get_if<AllocReply>(&action)) granted.push_back(grant->tensor);
        if (const auto* promise = std::get_if<FetchReply>(&action))
          promised.push_back(promise->tensor);
      }
    }
  };
  tell(TenantLimits{kTenant, {KiB(16), KiB(64)}});
  for (const uint32_t client : {1u, 2u}) {
    tell(ClientAttached{ClientId{client}, kTenant, {KiB(4), KiB(64)}});
    for (const uint32_t slot : {0u, 1u}) {
      tell(CreateRequested{ClientId{client}, SlotId{slot}, KiB(4), kDevice, kNoName,
                           Tick(seconds(9)), false});
      tell(PutSeen{granted.back(), 1, {}});
      tell(StreamComplete{granted.back()});
    }
  }
  // The first of each client made way for its second.
  tell(FetchRequested{granted[0], kDevice, Tick(seconds(9))});
  tell(FetchRequested{granted[2], kDevice, Tick(seconds(9))});
  ASSERT_EQ(promised, std::vector<TensorId>{granted[0]});
  tell(Moved{arriving.front().tensor, Moved::Outcome::kDone});
  EXPECT_EQ(promised.back(), granted[2]);
}

TEST(PlannerRegressionTest, AFetchThatComesBetweenADropAndItsRefusalIsAnswered) {
  Bare bare(KiB(4));
  const TensorId tensor = bare.Create(0, KiB(4));
  bare.Put(tensor, 1);
  bare.MakeClean(tensor, 1, KiB(4), 1);
  bare.Request(1, KiB(4));
  ASSERT_EQ(bare.Take<Drop>().tensor, tensor);
  bare.Tell(FetchRequested{tensor, kDevice, Tick(seconds(20))});
  bare.Tell(Dropped{tensor, false});  // its lease is Fetching
  ASSERT_TRUE(bare.Has<FetchReply>());
  EXPECT_FALSE(bare.Take<FetchReply>().arriving);
}

TEST(PlannerRegressionTest, AGetElsewhereThatComesBetweenADropAndItsRefusalIsAnswered) {
  Bare bare(KiB(4), {.devices = 2});
  const TensorId tensor = bare.Create(0, KiB(4));
  bare.Put(tensor, 1);
  bare.MakeClean(tensor, 1, KiB(4), 1);
  bare.Request(1, KiB(4));
  ASSERT_EQ(bare.Take<Drop>().tensor, tensor);
  bare.Tell(FetchRequested{tensor, DeviceId{1}, Tick(seconds(20))});
  bare.Tell(Dropped{tensor, false});  // its lease is Fetching
  bare.SlabsCome();
  EXPECT_TRUE(bare.Has<FetchReply>());
}

TEST(PlannerRegressionTest, WhatNeedsMoreGranulesThanTheBudgetHasIsRefusedAtOnce) {
  Bare bare(KiB(4) + Bytes(512));
  bare.Request(0, KiB(4) + Bytes(256));
  EXPECT_TRUE(bare.Has<AllocError>());
  EXPECT_FALSE(bare.Has<AddSlab>());
}

// A tensor that is on its way back, unasked, of a planner that prefetches.
TensorId Prefetched(Bare& bare) {
  const TensorId tensor = bare.Create(0, KiB(8));
  bare.Put(tensor, 1, Order(1));
  bare.Request(1, KiB(4));
  bare.Take<Move>();
  bare.Tell(Moved{tensor, Moved::Outcome::kDone});
  const TensorId other = bare.Take<AllocReply>().tensor;
  bare.Tell(GetSeen{other});
  bare.Tell(Freed{other});
  EXPECT_FALSE(bare.Take<Move>().demand);
  EXPECT_EQ(bare.ResidencyOf(tensor), Residency::kArriving);
  return tensor;
}

// As after dropped log entries, when the rows are read, which show puts alone.
TEST(PlannerRegressionTest, APutWithoutItsGetIsAUseOfWhatWasPrefetched) {
  Bare bare(KiB(8), {.prefetch = true});
  const TensorId tensor = Prefetched(bare);
  bare.Tell(Moved{tensor, Moved::Outcome::kDone});
  bare.Put(tensor, 1);
  bare.Tell(Freed{tensor});
  EXPECT_EQ(bare.planner().stats().prefetches, 1u);
  EXPECT_EQ(bare.planner().stats().prefetches_unused, 0u);
}

// A row is its client's memory: it may say anything at any time.
TEST(PlannerRegressionTest, APutOfWhatIsBeingPrefetchedChangesNothing) {
  Bare bare(KiB(8), {.prefetch = true});
  const TensorId tensor = Prefetched(bare);
  bare.Put(tensor, 2);
  bare.Tell(Moved{tensor, Moved::Outcome::kDone});
  EXPECT_EQ(bare.ResidencyOf(tensor), Residency::kOnDevice);
}

// However many wait for one free: others' events come between them.
TEST(PlannerRegressionTest, ManyThatWaitForOneThingAreAnsweredBitByBit) {
  constexpr uint32_t kWaiting = 3000;
  constexpr size_t kAtOnce = 1024;
  for (const bool refused : {false, true}) {
    Bare bare(KiB(4096), {.slab = KiB(4096)});
    TensorId large{};
    if (!refused) large = bare.Create(0, KiB(4096));
    for (uint32_t slot = 1; slot <= kWaiting; ++slot) {
      bare.Tell(CreateRequested{kClient, SlotId{slot}, KiB(1), kDevice, kNoName, Tick(seconds(60)),
                                refused});
    }
    size_t answered = 0;
    const auto answers = [&] {
      size_t count = 0;
      for (; bare.Has<AllocReply>(); ++count) bare.Take<AllocReply>();
      for (; bare.Has<AllocError>(); ++count) bare.Take<AllocError>();
      EXPECT_LE(count, kAtOnce);
      answered += count;
    };
    if (refused) {
      const AddSlab slab = bare.Take<AddSlab>();
      bare.Tell(SlabFailed{slab.client, slab.device, slab.offset});
    } else {
      bare.Tell(Freed{large});
    }
    answers();
    for (int pass = 0; pass < 10 && answered < kWaiting; ++pass) {
      EXPECT_LE(bare.planner().NextWake(), Tick(seconds(1)));
      bare.Pass(Duration{0});
      answers();
    }
    EXPECT_EQ(answered, kWaiting) << (refused ? "refused" : "granted");
  }
}

TEST(PlannerRegressionTest, ARescueFromASlabThatIsBeingEmptiedDoesNotForgetTheWaiter) {
  Script s({.capacity = KiB(8), .slab = KiB(8)});
  s.Make("A", KiB(4)).Make("B", KiB(4));
  const ClientId first = s.me();
  s.As(s.world().Attach(Script::kTenant, {KiB(8), KiB(1024)})).Create("C", KiB(8));
  ASSERT_EQ(s.StateOf("A"), State::kLeaving);
  s.As(first).Get("A").AllCopiesDone();
  ASSERT_EQ(s.StateOf("A"), State::kInUse);
  EXPECT_EQ(s.StateOf("C"), State::kWaiting);
  s.Put("A").Pass(milliseconds(50)).AllCopiesDone().Pass(milliseconds(50));
  EXPECT_EQ(s.StateOf("C"), State::kInUse);
}

}  // namespace
}  // namespace ravenstore::core
