// How large a client's slabs are, where they come, and when.
#include <gtest/gtest.h>

#include <string>

#include "core/extents.h"
#include "core/planner.h"
#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;
using std::chrono::milliseconds;

// Whatever the daemon is configured to: of one slab a tensor in use would keep all.
void ExpectSlabsOfAnEighth(Script& s) {
  for (int i = 0; i < 5; ++i) s.Make("T" + std::to_string(i), KiB(8));
  s.Create("U", KiB(8)).Make("V", KiB(8)).Make("W", KiB(8));
  s.Create("L", KiB(48)).AllCopiesDone().Pass(milliseconds(50)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("L"), State::kInUse);
  EXPECT_EQ(s.StateOf("U"), State::kInUse);
}

TEST(PlannerGrowthTest, ABudgetOfLessThanASlabIsHeldInSlabsOfAnEighth) {
  Script s({.capacity = KiB(64), .slab = KiB(1024)});
  ExpectSlabsOfAnEighth(s);
}

TEST(PlannerGrowthTest, SoIsATenantsBudget) {
  Script s({.capacity = KiB(512), .slab = KiB(1024)});
  s.world().SetTenant(Script::kTenant, {.device = KiB(64), .host = KiB(1024)});
  ExpectSlabsOfAnEighth(s);
}

TEST(PlannerGrowthTest, WhatIsMadeFreeForAnOlderRequestIsNoHelpForANewerOne) {
  Script s({.capacity = KiB(64), .slab = KiB(4)});
  const ClientId mine = s.me();
  const auto attach = [&s] {
    return s.world().Attach(Script::kTenant, {.device = KiB(64), .host = KiB(1024)});
  };
  s.As(attach());
  for (int i = 0; i < 8; ++i) s.Make("B" + std::to_string(i), KiB(4));
  const ClientId newer = attach();
  s.As(newer);
  for (int i = 0; i < 4; ++i) s.Make("C" + std::to_string(i), KiB(4));
  s.As(mine).Create("D", KiB(16)).Create("E", KiB(24));
  ASSERT_EQ(s.StateOf("E"), State::kWaiting);
  const size_t copies = s.world().copies().size();
  s.As(newer).Create("F", KiB(4));
  EXPECT_EQ(s.world().copies().size(), copies + 1);
  s.AllCopiesDone();
  EXPECT_EQ(s.StateOf("E"), State::kInUse);
  EXPECT_EQ(s.StateOf("F"), State::kInUse);
}

// The refusal of a request whose slab was not made; `limit` ran out, or memory did.
Error RefusalAfter(const std::string& limit) {
  constexpr ClientId kClient{1};
  constexpr TenantId kTenant{1};
  PlannerOptions options;
  options.slab = MiB(2);
  options.device_capacity = {MiB(64)};
  options.arena = {MiB(128)};
  options.host_capacity = MiB(64);
  Planner planner(options);
  Plan plan;
  Tick now{std::chrono::seconds(1)};
  planner.Apply(TenantLimits{kTenant, {MiB(64), MiB(64)}}, now, &plan);
  planner.Apply(ClientAttached{kClient, kTenant, {MiB(64), MiB(64)}}, now, &plan);
  planner.Apply(CreateRequested{kClient, SlotId{0}, MiB(1), DeviceId{0}, kNoName,
                                now + milliseconds(10), false},
                now, &plan);
  for (size_t i = 0; i < plan.size(); ++i) {
    const Action action = plan[i];
    if (const auto* add = std::get_if<AddSlab>(&action)) {
      planner.Apply(SlabFailed{kClient, DeviceId{0}, add->offset, limit}, now, &plan);
      now += milliseconds(20);
      planner.Apply(TimePassed{}, now, &plan);
    } else if (const auto* refusal = std::get_if<AllocError>(&action)) {
      return refusal->error;
    }
  }
  return {ErrorCode::kSystem, "it was not refused"};
}

TEST(PlannerGrowthTest, WhatRanOutIsToldToWhoWaitsForASlab) {
  EXPECT_EQ(RefusalAfter("").code, ErrorCode::kOutOfMemory);
  const Error refusal = RefusalAfter("no descriptors are left");
  EXPECT_EQ(refusal.code, ErrorCode::kLimit);
  EXPECT_EQ(refusal.message, "no descriptors are left");
}

TEST(PlannerGrowthTest, AClientThatGrowsGetsItsNextSlabAheadOfNeed) {
  Script s({.capacity = KiB(256), .slab = KiB(4)});
  for (int i = 0; i < 4; ++i) s.Create("T" + std::to_string(i), KiB(4));
  EXPECT_EQ(s.Held(), KiB(16));  // a small one does not
  for (int i = 4; i < 9; ++i) s.Create("T" + std::to_string(i), KiB(4));
  EXPECT_EQ(s.Held(), KiB(40));
}

// The size of the slab that is made when `name` is created.
Bytes SlabMadeFor(Script& s, const std::string& name, Bytes size) {
  s.SlabsCome(false).Create(name, size);
  const Bytes made = s.world().slab_jobs().empty() ? Bytes{0} : s.world().slab_jobs().back().size;
  s.SlabsCome(true);
  return made;
}

// Each end of a tensor in use keeps most of a slab from what is wanted beside it, and slabs that
// move between clients take time.
TEST(PlannerGrowthTest, SlabsAreSmallWhereAClientHasTheDeviceAloneAndLargeWhereItIsShared) {
  Script s({.capacity = KiB(512), .slab = KiB(4)});
  EXPECT_EQ(SlabMadeFor(s, "A", KiB(56)), KiB(8));  // a 64th of the budget
  const ClientId mine = s.me();
  s.As(s.world().Attach(Script::kTenant, {.device = KiB(512), .host = KiB(64)}));
  EXPECT_EQ(SlabMadeFor(s, "B", KiB(56)), KiB(56));  // at most an eighth
  s.As(mine);
  EXPECT_GT(SlabMadeFor(s, "C", KiB(56)), KiB(8));
}

// 1.5 KiB in use keep three slabs of 1 KiB, so that 61 of the 62.5 KiB beside them can be one.
TEST(PlannerGrowthTest, WhoFailsForPiecesLearnsWhichBudgetWouldDo) {
  Script s({.capacity = KiB(72), .slab = KiB(8)});
  s.DeviceCapacity(KiB(64));
  s.Make("a", KiB(4)).Create("A", Bytes(512)).Make("b", KiB(8)).Create("B", Bytes(512));
  s.Make("c", KiB(8)).Create("C", Bytes(512)).Make("d", KiB(24));
  s.FailFast(true).Create("L", KiB(62));
  EXPECT_EQ(s.StateOf("L"), State::kRefused);
  EXPECT_NE(
      s.Words("L").find("1.5 KiB in use lie in slabs of 3.0 KiB, and what is left between "
                        "them is in pieces (fragmentation): a device budget of 65.0 KiB would "
                        "do"),
      std::string::npos)
      << s.Words("L");
  s.world().SetTenant(Script::kTenant, {.device = KiB(65), .host = KiB(1024)});
  s.DeviceCapacity(KiB(65)).Budget(KiB(65)).FailFast(false).Create("M", KiB(62));
  for (int i = 0; i < 5; ++i) s.AllCopiesDone().Pass(milliseconds(50));
  EXPECT_EQ(s.StateOf("M"), State::kInUse);
}

// Where clients share the device, slabs go in between: a large tensor waited for its own each time.
TEST(PlannerGrowthTest, TheCyclesLargestTensorHasItsRoomAheadOfNeed) {
  Script s({.capacity = KiB(256), .slab = KiB(4)});
  const ClientId mine = s.me();
  s.As(s.world().Attach(Script::kTenant, {.device = KiB(64), .host = KiB(64)})).Make("B", KiB(4));
  s.As(mine);
  const auto rise = [&s] {
    for (int i = 0; i < 10; ++i) s.Create("T" + std::to_string(i), KiB(4));
  };
  rise();
  EXPECT_LT(s.Held(), KiB(60));  // nobody knows yet
  s.Create("L", KiB(24)).Free("L");
  for (int i = 0; i < 10; ++i) s.Free("T" + std::to_string(i));
  s.DeviceCapacity(KiB(4)).AllCopiesDone().DeviceCapacity(KiB(256));
  ASSERT_LT(s.Held(), KiB(8));
  rise();
  EXPECT_GE(s.Held(), KiB(64));
  s.SlabsCome(false).Create("L", KiB(24));
  EXPECT_EQ(s.StateOf("L"), State::kInUse);
}

TEST(PlannerGrowthTest, AnArenaHasRoomForGapsAndNoMoreAddressesThanAMapHolds) {
  EXPECT_EQ(ArenaFor(GiB(80)), GiB(320));
  for (const Bytes capacity : {GiB(600), GiB(2047), GiB(100000)}) {
    EXPECT_EQ(ArenaFor(capacity), kRangeMax);
    const ExtentMap map(ArenaFor(capacity));
  }
}

TEST(PlannerGrowthTest, AFasterLinkWantsLargerSlabs) {
  EXPECT_EQ(SlabFor({.up_bytes_per_second = 50e9}), MiB(22));
  EXPECT_EQ(SlabFor({.up_bytes_per_second = 450e9}), MiB(188));
}

// The room that is left should lie beside what is needed last.
TEST(PlannerGrowthTest, TheLastSlabLiesBelowTheFirstIfWhatLiesThereIsNeededLater) {
  const auto below = [](Bytes size, int count, bool last_in_first_out) {
    Script s({.capacity = KiB(64), .slab = KiB(4)});
    const auto offset_of = [&s](int i) { return s.View("T" + std::to_string(i)).device_offset; };
    for (int i = 0; i < count; ++i) {
      const auto until = std::chrono::seconds(last_in_first_out ? 1000 - i : 1000 + i);
      s.Make("T" + std::to_string(i), size, At(s.world().now() + until));
    }
    int sum = 0;
    for (int i = 0; i < count; ++i) sum += offset_of(i) < offset_of(0);
    EXPECT_EQ(s.Held(), KiB(64));
    return sum;
  };
  const int small = below(KiB(1), 64, true);
  EXPECT_GT(small, 0);
  EXPECT_LE(small, 3 * 4);  // less than three slabs
  EXPECT_EQ(below(KiB(1), 64, false), 0);
  EXPECT_EQ(below(KiB(4), 16, true), 0);  // large tensors want the room in one piece
}

// A request waits for the last of its slabs only: the others have come while it was emptied.
TEST(PlannerGrowthTest, SlabsOfARequestComeWhileOthersAreEmptied) {
  Script s({.capacity = KiB(64), .slab = KiB(4), .in_flight = KiB(8)});
  // Runs are dear: between any two that are not needed for long there is one that is.
  for (int i = 0; i < 16; ++i) {
    s.Make("T" + std::to_string(i), KiB(4),
           At(s.world().now() + (i % 2 == 0 ? std::chrono::hours(1) : milliseconds(100))));
  }
  s.Create("L", KiB(24));
  ASSERT_EQ(s.StateOf("L"), State::kWaiting);
  bool came = false;
  for (int left = 6; left > 1; --left) {
    ASSERT_FALSE(s.world().copies().empty()) << left;
    s.world().FinishCopy(0, true);
    s.FinishSlabs();
    EXPECT_EQ(s.StateOf("L"), State::kWaiting) << left;
    came |= s.Held() > KiB(48);
  }
  EXPECT_TRUE(came);
  s.AllCopiesDone();
  EXPECT_EQ(s.StateOf("L"), State::kInUse);
}

// What is left for the last slab is less than the store may have; smaller ones find room in it.
TEST(PlannerGrowthTest, WhatOtherProcessesHoldKeepsNobodyFromTheRest) {
  constexpr ClientId kClient{1};
  constexpr TenantId kTenant{1};
  constexpr DeviceId kDevice{0};
  constexpr Bytes kAll = MiB(512);
  constexpr Bytes kThere = MiB(489);
  PlannerOptions options;
  options.slab = MiB(2);
  options.device_capacity = {kAll};
  options.arena = {kAll * 2};
  options.host_capacity = kAll;
  Planner planner(options);
  Plan plan;
  Tick now{std::chrono::seconds(1)};
  Bytes held;
  size_t granted = 0;
  size_t refused = 0;
  const auto tell = [&](const Event& event) {
    planner.Apply(event, now, &plan);
    for (size_t i = 0; i < plan.size(); ++i) {
      const Action action = plan[i];
      if (const auto* add = std::get_if<AddSlab>(&action)) {
        const bool fits = held + add->size <= kThere;
        if (fits) held += add->size;
        planner.Apply(fits ? Event(SlabAdded{kClient, kDevice, add->offset, add->size})
                           : Event(SlabFailed{kClient, kDevice, add->offset}),
                      now, &plan);
      } else if (const auto* grant = std::get_if<AllocReply>(&action)) {
        ++granted;
        planner.Apply(PutSeen{grant->tensor, 1, {}}, now, &plan);
        planner.Apply(StreamComplete{grant->tensor}, now, &plan);
      } else if (std::holds_alternative<AllocError>(action)) {
        ++refused;
      }
    }
    plan.clear();
  };
  tell(TenantLimits{kTenant, {kAll, kAll}});
  tell(ClientAttached{kClient, kTenant, {kAll, kAll}});
  for (uint32_t slot = 0; refused == 0; ++slot) {
    now += milliseconds(1);
    tell(CreateRequested{kClient, SlotId{slot}, MiB(1), kDevice, kNoName, kNever, true});
    ASSERT_EQ(granted + refused, slot + 1u);
  }
  EXPECT_GE(MiB(1) * granted + options.slab, kThere);
  planner.CheckInvariants();
}

}  // namespace
}  // namespace ravenstore::core
