// Slabs that move within an arena, between clients, and back to the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/planner.h"
#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;
using std::chrono::milliseconds;

TEST(PlannerSlabsTest, RoomInTwoPiecesBecomesOne) {
  Script s({.capacity = KiB(16), .slab = KiB(4)});
  s.Make("A", KiB(4)).Create("B", KiB(4)).Make("C", KiB(4)).Make("D", KiB(4));
  s.Free("A").Free("C").Free("D");
  s.Create("E", KiB(12));  // 4 free before B, 8 behind it
  EXPECT_EQ(s.StateOf("E"), State::kInUse);
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
  EXPECT_EQ(s.Held(), KiB(16));
  s.Use("E").Use("B");
}

TEST(PlannerSlabsTest, WhatLivesInASlabThatMovesLeavesFirst) {
  Script s({.capacity = KiB(16), .slab = KiB(4)});
  s.Make("A", KiB(4)).Create("B", KiB(4)).Make("C", KiB(4)).Make("D", KiB(4));
  s.Create("E", KiB(12));
  EXPECT_EQ(s.StateOf("E"), State::kWaiting);
  EXPECT_EQ(s.StateOf("A"), State::kLeaving);
  s.AllCopiesDone();
  EXPECT_EQ(s.StateOf("E"), State::kInUse);
  s.Put("B").Free("E").Get("A").Get("C").AllCopiesDone().Use("A").Use("C");
}

TEST(PlannerSlabsTest, ASlabWhoseTensorIsTakenBackStays) {
  Script s({.capacity = KiB(16), .slab = KiB(4)});
  s.Make("A", KiB(4)).Create("B", KiB(4)).Make("C", KiB(4)).Make("D", KiB(4));
  s.Create("E", KiB(12)).Get("A");  // a rescue
  s.AllCopiesDone();
  EXPECT_EQ(s.StateOf("A"), State::kInUse);
  EXPECT_EQ(s.StateOf("E"), State::kWaiting);
  s.Use("A").Put("A").Pass(milliseconds(50)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("E"), State::kInUse);
}

TEST(PlannerSlabsTest, WhatNoLimitAllowsTakesNothingFromOthers) {
  Script s({.capacity = KiB(64), .slab = KiB(4), .devices = 2});
  const ClientId me = s.me();
  s.Create("F", KiB(32), DeviceId{1}).Put("F");
  s.As(s.world().Attach(Script::kTenant, {KiB(64), KiB(1024)}));
  s.DeviceCapacity(KiB(16)).Make("A", KiB(8)).Make("B", KiB(8));
  s.As(me).Create("L", KiB(32)).Get("F", DeviceId{0});
  for (int i = 0; i < 50; ++i) s.Pass(milliseconds(2)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("A"), State::kIdle);
  EXPECT_EQ(s.StateOf("B"), State::kIdle);
  s.DeviceCapacity(KiB(64));  // the memory is there again
  EXPECT_EQ(s.StateOf("L"), State::kInUse);
  s.Put("L").Pass(milliseconds(50)).AllCopiesDone();
  EXPECT_NE(s.StateOf("F"), State::kWaiting);
}

TEST(PlannerSlabsTest, OneInUseInTheMiddleDoesNotStarveALargeRequest) {
  // However the addresses were cut up before.
  Script s({.capacity = KiB(32), .slab = KiB(2)});
  for (int i = 0; i < 16; ++i) s.Make("T" + std::to_string(i), KiB(2));
  s.Get("T7");
  for (int round = 0; round < 8; ++round) {
    const std::string name = "L" + std::to_string(round);
    s.Create(name, KiB(30)).AllCopiesDone().Pass(milliseconds(50)).AllCopiesDone();
    ASSERT_EQ(s.StateOf(name), State::kInUse) << round;
    s.Use(name).Free(name);
    for (const int i : {round, round + 8}) {
      const std::string back = "T" + std::to_string(i);
      if (i != 7) s.Get(back).AllCopiesDone().Use(back).Put(back);
    }
  }
  s.Use("T7");
}

TEST(PlannerSlabsTest, ATensorThatIsBeingCopiedOutAheadLeavesWhenThatIsDone) {
  Script s({.capacity = KiB(16), .slab = KiB(4), .preclean = true});
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, KiB(4));
  s.Create("E", KiB(4)).CopyDone("A").Pass(milliseconds(1));
  ASSERT_EQ(s.CopyKindOf("B"), World::CopyKind::kClean);
  s.Create("F", KiB(12));
  EXPECT_EQ(s.StateOf("F"), State::kWaiting);
  EXPECT_EQ(s.StateOf("B"), State::kIdle);  // its copy goes on
  s.CopyDone("B");
  EXPECT_EQ(s.StateOf("B"), State::kAway);
  s.AllCopiesDone();
  EXPECT_EQ(s.StateOf("F"), State::kInUse);
  s.Put("E").Free("F").Get("B").AllCopiesDone().Use("B");
}

TEST(PlannerSlabsTest, ATensorThatIsUsedWhileItIsCopiedOutAheadDoesNotLeave) {
  Script s({.capacity = KiB(16), .slab = KiB(4), .preclean = true});
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, KiB(4));
  s.Create("E", KiB(4)).CopyDone("A").Pass(milliseconds(1));
  ASSERT_EQ(s.CopyKindOf("B"), World::CopyKind::kClean);
  s.Create("F", KiB(12)).Get("B").AllCopiesDone();
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
  EXPECT_EQ(s.StateOf("F"), State::kWaiting);
  s.Use("B").Put("B").Pass(milliseconds(50)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("F"), State::kInUse);
}

TEST(PlannerSlabsTest, AClientThatMissesItsTensorsLessGivesWay) {
  Script s({.capacity = MiB(64), .slab = MiB(8), .host = MiB(128), .host_budget = MiB(128)});
  const ClientId first = s.me();
  const Tick now = s.world().now();
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, MiB(8), At(now + milliseconds(900)));
  const ClientId second = s.world().Attach(Script::kTenant, {MiB(64), MiB(128)});
  s.As(second);
  for (const char* name : {"K", "L", "M", "N"}) s.Make(name, MiB(8), At(now + milliseconds(1)));
  s.Create("O", MiB(16)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("O"), State::kInUse);
  for (const char* name : {"K", "L", "M", "N"}) EXPECT_EQ(s.StateOf(name), State::kIdle) << name;
  EXPECT_EQ(s.Held(), MiB(48));
  s.As(first);
  EXPECT_EQ(s.Held(), MiB(16));
}

// Each client's priorities are about its own tensors: nobody gets others' memory by calling his own
// high, or keeps it so.
TEST(PlannerSlabsTest, BetweenClientsPrioritiesSayNothing) {
  for (const auto& [firsts, seconds] :
       {std::pair(Priority::kHigh, Priority::kLow), std::pair(Priority::kNormal, Priority::kHigh),
        std::pair(Priority::kHigh, Priority::kNormal)}) {
    Script s({.capacity = MiB(64), .slab = MiB(8), .host = MiB(128), .host_budget = MiB(128)});
    const auto make = [&s](const char* name, Priority priority, Duration ahead) {
      s.Create(name, MiB(8));
      s.PutAs(priority, name, At(s.world().now() + ahead));
    };
    for (const char* name : {"A", "B", "C", "D"}) make(name, firsts, milliseconds(100));
    s.As(s.world().Attach(Script::kTenant, {MiB(64), MiB(128)}));
    for (const char* name : {"K", "L", "M", "N"}) make(name, seconds, milliseconds(10));
    s.Create("O", MiB(16)).AllCopiesDone();
    EXPECT_EQ(s.StateOf("O"), State::kInUse);
    for (const char* name : {"K", "L", "M", "N"}) EXPECT_EQ(s.StateOf(name), State::kIdle) << name;
  }
}

// Two tenants of a device of 64 MiB, in slabs of 8; the script's client is the first's.
class PlannerGuaranteesTest : public testing::Test {
 protected:
  static constexpr TenantId kOther{2};

  PlannerGuaranteesTest() : other_(Attach(kOther, Bytes{0})) {}

  ClientId Attach(TenantId tenant, Bytes guarantee) {
    Guarantee(tenant, guarantee);
    return s_.world().Attach(tenant, {MiB(64), MiB(256)});
  }
  void Guarantee(TenantId tenant, Bytes guarantee) {
    s_.world().SetTenant(tenant, {MiB(64), MiB(256), guarantee});
  }
  void Make(const std::vector<std::string>& names, Duration ahead) {
    const Tick now = s_.world().now();
    for (const std::string& name : names)
      s_.Create(name, MiB(8)).AllCopiesDone().Put(name, At(now + ahead));
  }
  size_t CountIdle(const std::vector<std::string>& names) {
    return static_cast<size_t>(std::count_if(names.begin(), names.end(), [this](const auto& name) {
      return s_.StateOf(name) == State::kIdle;
    }));
  }

  const std::vector<std::string> firsts_ = {"A", "B", "C", "D"};
  const std::vector<std::string> seconds_ = {"K", "L", "M", "N"};
  Script s_{{.capacity = MiB(64), .slab = MiB(8), .host = MiB(256), .host_budget = MiB(256)}};
  ClientId first_ = s_.me();
  ClientId other_;
};

TEST_F(PlannerGuaranteesTest, WhatATenantIsGuaranteedStaysThoughOthersMissTheirsMore) {
  for (const Bytes guarantee : {MiB(32), MiB(16)}) {
    SCOPED_TRACE(guarantee.count());
    Guarantee(Script::kTenant, guarantee);
    s_.As(first_);
    Make(firsts_, milliseconds(900));
    s_.As(other_);
    Make(seconds_, milliseconds(1));
    s_.Create("O", MiB(16)).AllCopiesDone();
    EXPECT_EQ(s_.StateOf("O"), State::kInUse);
    EXPECT_EQ(CountIdle(firsts_), guarantee.count() / MiB(8).count());
    for (const std::string& name : seconds_) s_.Free(name);
    s_.Free("O");
    s_.As(first_);
    for (const std::string& name : firsts_) s_.Free(name);
    s_.AllCopiesDone();
  }
}

TEST_F(PlannerGuaranteesTest, UpToItsGuaranteeATenantGetsWhatOthersHoldBeyondTheirs) {
  Guarantee(kOther, MiB(24));
  s_.As(first_);
  Make({"A", "B", "C", "D", "E", "F", "G", "H"}, milliseconds(1));
  s_.As(other_);
  Make({"K", "L", "M", "N"}, milliseconds(900));
  // The fourth is beyond it: its own that is missed least makes way.
  EXPECT_EQ(CountIdle({"A", "B", "C", "D", "E", "F", "G", "H"}), 5u);
  EXPECT_EQ(CountIdle(seconds_), 3u);
}

TEST_F(PlannerGuaranteesTest, OfMoreThanThereIsEachIsWorthItsShare) {
  Guarantee(Script::kTenant, MiB(64));
  s_.As(first_);
  Make({"A", "B", "C", "D", "E", "F", "G", "H"}, milliseconds(1));
  Guarantee(kOther, MiB(64));
  s_.As(other_);
  Make({"K", "L", "M", "N", "O", "P"}, milliseconds(900));
  EXPECT_EQ(CountIdle({"K", "L", "M", "N", "O", "P"}), 4u);
  EXPECT_EQ(CountIdle({"A", "B", "C", "D", "E", "F", "G", "H"}), 4u);
}

// A tenant's weight or priority makes surplus its own however soon others need theirs.
class PlannerWeightsTest : public PlannerGuaranteesTest {
 protected:
  void SetTenant(TenantId tenant, std::optional<uint32_t> weight,
                 TenantPriority priority = TenantPriority::kNormal, Bytes guarantee = Bytes{0}) {
    s_.world().SetTenant(tenant, {.device = MiB(64),
                                  .host = MiB(256),
                                  .device_guarantee = guarantee,
                                  .weight = weight,
                                  .priority = priority});
  }
  // The first fills the device, then the other one makes eight tensors; how many of the first's
  // and of the other's are on the device then.
  std::pair<size_t, size_t> Fill() {
    s_.As(first_);
    Make(eight_, milliseconds(1));
    s_.As(other_);
    Make(others_eight_, milliseconds(900));
    return {CountIdle(eight_), CountIdle(others_eight_)};
  }

  const std::vector<std::string> eight_ = {"A", "B", "C", "D", "E", "F", "G", "H"};
  const std::vector<std::string> others_eight_ = {"K", "L", "M", "N", "O", "P", "Q", "R"};
};

using Counts = std::pair<size_t, size_t>;

TEST_F(PlannerWeightsTest, SurplusIsSharedByWeight) {
  SetTenant(kOther, 3);
  EXPECT_EQ(Fill(), Counts(2, 6));
  // The first, too, makes room of its own memory from then on.
  s_.As(first_);
  Make({"I", "J"}, milliseconds(900));
  EXPECT_EQ(CountIdle(others_eight_), 6u);
}

TEST_F(PlannerWeightsTest, OfEqualWeightsEachHasAnEqualPart) {
  SetTenant(Script::kTenant, 7);
  SetTenant(kOther, 7);
  EXPECT_EQ(Fill(), Counts(4, 4));
}

TEST_F(PlannerWeightsTest, WhatIsBeyondGuaranteesIsSharedByWeight) {
  SetTenant(Script::kTenant, 1, TenantPriority::kNormal, MiB(16));
  SetTenant(kOther, 2);
  EXPECT_EQ(Fill(), Counts(4, 4)) << "16 + 16, and 32";
}

TEST_F(PlannerWeightsTest, AWeightThatChangesIsFollowed) {
  SetTenant(kOther, 1);
  EXPECT_EQ(Fill(), Counts(4, 4));
  SetTenant(Script::kTenant, 7);
  s_.As(first_);
  for (const std::string& name : eight_) {
    if (s_.StateOf(name) == State::kAway) s_.Get(name).AllCopiesDone().Put(name);
  }
  EXPECT_EQ(CountIdle(eight_), 7u);
}

TEST_F(PlannerWeightsTest, SurplusOfALowerPriorityMakesWayAndWhatIsGuaranteedStays) {
  SetTenant(Script::kTenant, std::nullopt, TenantPriority::kLow, MiB(8));
  EXPECT_EQ(Fill(), Counts(1, 7));
}

TEST_F(PlannerWeightsTest, WhoHasTheLowerPriorityIsServedOfWhatItHoldsItself) {
  SetTenant(kOther, 100, TenantPriority::kLow, MiB(16));
  EXPECT_EQ(Fill(), Counts(6, 2));
}

TEST_F(PlannerGuaranteesTest, OneWithoutClientsIsGuaranteedNothing) {
  Guarantee(TenantId{7}, MiB(64));
  Guarantee(kOther, MiB(56));
  s_.As(first_);
  Make(firsts_, milliseconds(1));
  s_.world().Kill(other_);
  Make({"E", "F", "G", "H"}, milliseconds(1));
  EXPECT_EQ(CountIdle(firsts_), 4u);
}

// Eight tensors of 8 MiB, of the first user, fill the device.
constexpr const char* kAll[] = {"A", "B", "C", "D", "E", "F", "G", "H"};

TEST_F(PlannerGuaranteesTest, WhileOthersAreAttachedATenantHasNoMoreInUseThanTheyLeaveIt) {
  Guarantee(kOther, MiB(8));
  s_.As(first_);
  for (const char* name : kAll) s_.Create(name, MiB(8));
  EXPECT_EQ(s_.StateOf("G"), State::kInUse);
  EXPECT_EQ(s_.StateOf("H"), State::kWaiting);
  s_.As(other_).Create("K", MiB(8));
  EXPECT_EQ(s_.StateOf("K"), State::kInUse);
  s_.Pass(std::chrono::seconds(1));
  EXPECT_EQ(s_.StateOf("H"), State::kRefused);
  EXPECT_NE(s_.Words("H").find("this user has 56.0 MiB in use, of the 56.0 MiB that it may"),
            std::string::npos)
      << s_.Words("H");
}

TEST_F(PlannerGuaranteesTest, AUserAloneHasAllOfTheDeviceInUse) {
  Guarantee(kOther, MiB(8));
  Guarantee(Script::kTenant, MiB(8));
  s_.world().Kill(other_);
  s_.As(first_);
  for (const char* name : kAll) s_.Create(name, MiB(8));
  for (const char* name : kAll) EXPECT_EQ(s_.StateOf(name), State::kInUse) << name;
}

TEST_F(PlannerGuaranteesTest, WhatWasInUseBeforeASecondCameStaysAndIsNotTakenBackBeyondItsShare) {
  s_.world().Kill(other_);
  s_.As(first_);
  for (const char* name : kAll) s_.Create(name, MiB(8));
  s_.As(Attach(kOther, MiB(8))).Create("K", MiB(8));
  for (const char* name : kAll) EXPECT_EQ(s_.StateOf(name), State::kInUse) << name;
  EXPECT_EQ(s_.StateOf("K"), State::kWaiting);
  s_.Put("A").Pass(milliseconds(50)).AllCopiesDone();
  EXPECT_EQ(s_.StateOf("K"), State::kInUse);
  EXPECT_EQ(s_.StateOf("A"), State::kAway);
  s_.Get("A").Pass(milliseconds(10)).AllCopiesDone();
  EXPECT_EQ(s_.StateOf("A"), State::kWaiting);
  s_.Put("B").Pass(milliseconds(10)).AllCopiesDone();
  EXPECT_EQ(s_.StateOf("A"), State::kInUse);
}

TEST_F(PlannerGuaranteesTest, WhatAStreamStillTouchesCountsAsInUse) {
  Guarantee(kOther, MiB(8));
  s_.As(first_);
  for (const char* name : kAll) {
    if (std::string(name) == "H") break;
    s_.Create(name, MiB(8));
    s_.world().Put(s_.At(name), {});
  }
  s_.Poll().Create("H", MiB(8));
  EXPECT_EQ(s_.StateOf("H"), State::kWaiting);
  s_.Use("A").Poll().Pass(milliseconds(10)).AllCopiesDone();
  EXPECT_EQ(s_.StateOf("H"), State::kInUse);
}

TEST_F(PlannerGuaranteesTest, WhatIsTakenForAGuaranteeCannotBeRescued) {
  Guarantee(kOther, MiB(8));
  s_.As(first_);
  Make({"A", "B", "C", "D", "E", "F", "G", "H"}, milliseconds(1));
  s_.As(other_).Create("K", MiB(8));
  ASSERT_EQ(s_.StateOf("K"), State::kWaiting);
  s_.As(first_);
  for (const char* name : kAll) s_.Get(name);
  s_.AllCopiesDone();
  EXPECT_EQ(s_.StateOf("K"), State::kInUse);
}

TEST(PlannerSharesTest, ByDefaultOthersLeaveEachTenantItsPartOfEachDevice) {
  Script s({.capacity = MiB(64),
            .slab = MiB(8),
            .host = MiB(256),
            .host_budget = MiB(256),
            .guaranteed_part = 8});
  const ClientId first = s.me();
  s.world().SetTenant(TenantId{2}, {MiB(64), MiB(256)});
  const ClientId other = s.world().Attach(TenantId{2}, {MiB(64), MiB(256)});
  for (const char* name : kAll) s.Create(name, MiB(8));
  EXPECT_EQ(s.StateOf("G"), State::kInUse);
  EXPECT_EQ(s.StateOf("H"), State::kWaiting);
  s.world().SetTenant(TenantId{2}, {MiB(64), MiB(256), Bytes{0}});
  s.As(first).Pass(milliseconds(10));
  EXPECT_EQ(s.StateOf("H"), State::kInUse);
  s.world().Kill(other);
}

class PlannerCoverTest : public testing::Test {
 protected:
  PlannerCoverTest() { s_.world().SetTenant(TenantId{2}, {MiB(16), MiB(64)}); }
  ClientId AttachOther() { return s_.world().Attach(TenantId{2}, {MiB(16), MiB(64)}); }
  // Puts tensor after tensor until one is not served, and says how many were.
  int Fill(const std::string& prefix) {
    for (int i = 0; i < 100; ++i) {
      const std::string name = prefix + std::to_string(i);
      s_.Create(name, MiB(1)).AllCopiesDone();
      if (s_.StateOf(name) != State::kInUse) return i;
      s_.Put(name);
    }
    return 100;
  }

  Script s_{{.capacity = MiB(16),
             .slab = MiB(1),
             .host = MiB(64),
             .host_budget = MiB(64),
             .guaranteed_part = 8}};
};

// The rest of the host pool is for those who hold little of it.
TEST_F(PlannerCoverTest, AnEighthOfTheHostPoolIsKeptFromAUserWhoHoldsTheRest) {
  EXPECT_EQ(Fill("T"), 72);
  EXPECT_EQ(s_.world().planner().HostTier().used, MiB(56));
  // It holds the device as well: for the other's tensor one of its own goes to what is kept.
  s_.As(AttachOther()).Create("K", MiB(1)).Pass(milliseconds(50)).AllCopiesDone();
  EXPECT_EQ(s_.StateOf("K"), State::kInUse);
  EXPECT_EQ(s_.world().planner().HostTier().used, MiB(57));
  s_.Put("K").Create("L", MiB(1)).Pass(std::chrono::seconds(2));
  EXPECT_EQ(s_.StateOf("L"), State::kRefused);
  EXPECT_NE(s_.Words("L").find("user 1 holds the most"), std::string::npos) << s_.Words("L");
}

// What is lent can be taken back, however often its owner leaves it and finds it lent again.
TEST_F(PlannerCoverTest, IdleMemoryIsLentOnlyAsFarAsTheHostCanTakeItBack) {
  const ClientId first = s_.me();
  AttachOther();
  EXPECT_EQ(Fill("T"), 67);
  for (int i = 0; i < 10; ++i) {
    const std::string name = "K" + std::to_string(i);
    const ClientId other = AttachOther();
    s_.As(other).Create(name, MiB(2)).Pass(milliseconds(50)).AllCopiesDone();
    EXPECT_EQ(s_.StateOf(name), State::kInUse) << name;
    EXPECT_LE(s_.world().planner().HostTier().used, MiB(56));
    s_.world().Kill(other);
    s_.As(first).Pass(std::chrono::seconds(2));  // the create that waited is over
    EXPECT_EQ(Fill("U" + std::to_string(i) + "."), 0);
  }
  EXPECT_NE(s_.Words("U9.0").find("what others are guaranteed"), std::string::npos)
      << s_.Words("U9.0");
}

// Who is alone may fill what is lent at once; what made way for the last one that came is in what
// is kept of the host, and comes out of it first.
TEST_F(PlannerCoverTest, WhoComesAgainAndAgainIsServedAgainAndAgain) {
  const ClientId first = s_.me();
  EXPECT_EQ(Fill("T"), 72);
  for (int i = 0; i < 10; ++i) {
    const std::string name = "K" + std::to_string(i);
    const ClientId other = AttachOther();
    s_.As(other).Create(name, MiB(1)).Pass(milliseconds(50)).AllCopiesDone();
    EXPECT_EQ(s_.StateOf(name), State::kInUse) << name;
    s_.world().Kill(other);
    s_.As(first).Pass(std::chrono::seconds(2));
    Fill("U" + std::to_string(i) + ".");
  }
  EXPECT_EQ(s_.world().planner().HostTier().used, MiB(57));
}

// What is lent to a process that keeps its slabs does not come back.
TEST(PlannerSharesTest, SomeIsNeverLentSoThatWhoComesDependsOnNobody) {
  Script s({.capacity = MiB(256),
            .slab = MiB(2),
            .host = MiB(256),
            .host_budget = MiB(256),
            .guaranteed_part = 8});
  const auto attach = [&](uint32_t user) {
    s.world().SetTenant(TenantId{user}, {MiB(256), MiB(256)});
    return s.world().Attach(TenantId{user}, {MiB(256), MiB(256)});
  };
  const ClientId second = attach(2);
  const auto held = [&] { return s.world().planner().DeviceTier(DeviceId{0}).held; };
  for (int i = 0; i < 160; ++i) {
    const std::string name = "T" + std::to_string(i);
    s.Create(name, MiB(2)).AllCopiesDone();
    if (s.StateOf(name) == State::kInUse && i % 2 == 0) s.Put(name);
  }
  EXPECT_EQ(held(), MiB(256 - 2 * 4));  // for the second, and for one who is still to come
  // No slab comes back, and no copy ends, before these are served.
  s.As(second).Create("K", MiB(4)).Pass(milliseconds(5));
  EXPECT_EQ(s.StateOf("K"), State::kInUse);
  s.As(attach(3)).Create("L", MiB(4)).Pass(milliseconds(5));
  EXPECT_EQ(s.StateOf("L"), State::kInUse);
}

TEST(PlannerSharesTest, AUserWhoFillsTheLinkLeavesOthersACopyOfTheirs) {
  Script s({.capacity = KiB(64), .slab = KiB(4), .guaranteed_part = 8, .demand_copies = 8});
  const ClientId first = s.me();
  s.world().SetTenant(TenantId{2}, {KiB(64), KiB(1024)});
  const ClientId other = s.world().Attach(TenantId{2}, {KiB(4), KiB(1024)});
  s.As(other).Make("K", KiB(4)).Create("L", KiB(4)).AllCopiesDone().Free("L");
  ASSERT_EQ(s.StateOf("K"), State::kAway);
  s.As(first);
  std::vector<std::string> names;
  for (int i = 0; i < 12; ++i) s.Make(names.emplace_back("T" + std::to_string(i)), KiB(4));
  s.Create("Z", KiB(48)).AllCopiesDone().Free("Z");
  for (const std::string& name : names) s.Get(name);
  ASSERT_EQ(s.world().copies().size(), 8u);
  s.As(other).Get("K");
  EXPECT_TRUE(s.IsCopying("K"));
}

// A client in its backward pass frees what another, in its forward pass, will want next.
TEST(PlannerSlabsTest, WhatLiesEmptyGoesBackAtOnceWhileAnotherFillsTheDevice) {
  Script s({.capacity = KiB(64), .slab = KiB(8)});
  const ClientId backward = s.me();
  const ClientId forward =
      s.world().Attach(Script::kTenant, {.device = KiB(64), .host = KiB(1024)});
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, KiB(8));
  s.As(forward);
  for (const char* name : {"K", "L", "M", "N"}) s.Make(name, KiB(8));
  s.As(backward).Get("D").Use("D").Free("D");
  EXPECT_EQ(s.Held(), KiB(32));  // nobody is short of anything
  s.As(forward).Create("O", KiB(8)).Create("P", KiB(8)).Pass(milliseconds(50)).AllCopiesDone();
  ASSERT_EQ(s.StateOf("P"), State::kInUse);  // which took an eviction
  s.As(backward).Get("C").AllCopiesDone().Use("C");
  const Bytes held = s.Held();
  s.Free("C");
  EXPECT_EQ(s.Held(), held - KiB(8));
  s.As(forward).Put("P").Get("P").Use("P");  // it takes back itself
  s.As(backward).Get("B").AllCopiesDone().Use("B");
  const Bytes kept = s.Held();
  s.Free("B");
  EXPECT_EQ(s.Held(), kept);
}

// What the link would only come to later may be spared: memory comes free meanwhile.
TEST(PlannerSlabsTest, SlabsAreEmptiedForOthersNoFasterThanTheLinkTakesThem) {
  Script s({.capacity = KiB(32), .slab = KiB(4), .in_flight = KiB(4)});
  const ClientId mine = s.me();
  const ClientId others = s.world().Attach(Script::kTenant, {.device = KiB(32), .host = KiB(1024)});
  s.As(others);
  for (int i = 0; i < 6; ++i) s.Make("B" + std::to_string(i), KiB(4));
  s.As(mine).Create("D", KiB(8)).Create("E", KiB(16));
  ASSERT_EQ(s.StateOf("E"), State::kWaiting);
  EXPECT_EQ(s.world().copies().size(), 1u);
  s.Free("B5").Free("B4").Free("B3");
  EXPECT_EQ(s.StateOf("E"), State::kWaiting);
  s.CopyDone("B0");
  EXPECT_EQ(s.StateOf("E"), State::kInUse);
  EXPECT_TRUE(s.world().copies().empty());
  EXPECT_EQ(s.StateOf("B1"), State::kIdle);
  EXPECT_EQ(s.StateOf("B2"), State::kIdle);
}

TEST(PlannerSlabsTest, ALoweredLimitEmptiesAllTheSlabsItTakesAtOnce) {
  Script s({.capacity = KiB(32), .slab = KiB(4)});
  for (int i = 0; i < 8; ++i) s.Make("T" + std::to_string(i), KiB(4));
  s.Budget(KiB(8));
  int leaving = 0;
  for (int i = 0; i < 8; ++i) leaving += s.StateOf("T" + std::to_string(i)) == State::kLeaving;
  EXPECT_EQ(leaving, 6);
  s.AllCopiesDone();
  EXPECT_EQ(s.Held(), KiB(8));
}

TEST(PlannerSlabsTest, OfSlabsThatMustGoThoseGoThatTheHostHasRoomFor) {
  Script s({.capacity = KiB(16), .slab = KiB(4), .host = KiB(8), .host_budget = KiB(8)});
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, KiB(4));
  s.Budget(KiB(4)).Poll();
  EXPECT_EQ(s.world().copies().size(), 2u) << "of three that are too many";
  s.AllCopiesDone().Pass(milliseconds(5));
  EXPECT_EQ(s.Held(), KiB(8));
  s.Free("A");  // wherever it is
  s.Pass(milliseconds(5)).AllCopiesDone();
  EXPECT_EQ(s.Held(), KiB(4));
}

TEST(PlannerSlabsTest, SlabsThatAreEmptiedComeBackOneByOne) {
  Script s({.capacity = KiB(32), .slab = KiB(4)});
  for (int i = 0; i < 8; ++i) s.Make("T" + std::to_string(i), KiB(4));
  s.Budget(KiB(8));
  for (uint64_t held = 32; held > 8; held -= 4) {
    EXPECT_EQ(s.Held(), KiB(held));
    s.world().FinishCopy(0, true);
    s.FinishSlabs();
  }
  EXPECT_EQ(s.Held(), KiB(8));
}

// What is made first is needed last and leaves first, and the room at the end lies beside it.
TEST(PlannerSlabsTest, AClientThatFillsItsEmptyArenaAgainBeginsInTheMiddleAndGoesRound) {
  Script s({.capacity = KiB(64), .slab = KiB(16), .in_flight = KiB(8)});
  const auto offset_of = [&s](int i) { return s.View("T" + std::to_string(i)).device_offset; };
  const auto make = [&s](int from, int to) {
    for (int i = from; i < to; ++i) {
      const std::string name = "T" + std::to_string(i);
      s.Create(name, KiB(2)).AllCopiesDone();
      s.Put(name, At(s.world().now() + milliseconds(1000 - 10 * i)));  // last in, first out
    }
  };
  const auto free = [&s](int from, int to) {
    for (int i = from; i < to; ++i) s.Free("T" + std::to_string(i));
  };
  make(0, 32);
  const Bytes begin = offset_of(0);
  free(0, 32);
  make(32, 34);
  EXPECT_EQ(offset_of(32), begin);  // it never had to evict
  free(32, 34);
  make(34, 67);  // one too many
  free(34, 67);
  make(67, 97);
  for (int i = 67; i < 97; ++i)
    EXPECT_EQ(offset_of(i), begin + KiB((32 + 2 * static_cast<uint64_t>(i - 67)) % 64)) << i;
  // The room that is left and the first four make way in one piece, and nothing else does.
  s.Create("L", KiB(12)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("L"), State::kInUse);
  for (int i = 67; i < 97; ++i)
    EXPECT_EQ(s.StateOf("T" + std::to_string(i)), i < 71 ? State::kAway : State::kIdle) << i;
}

// Clients that do not let go of what they are asked for keep a request from its room together no
// longer than a few times what one that does would take.
TEST(PlannerSlabsTest, ManyThatKeepWhatTheyAreAskedForAreAskedTogether) {
  constexpr int kSilent = 12;
  Script s({.capacity = KiB(256), .slab = KiB(4)});
  const ClientId mine = s.me();
  const auto attach = [&s] {
    return s.world().Attach(Script::kTenant, {.device = KiB(256), .host = KiB(1024)});
  };
  for (int i = 0; i < kSilent; ++i) {
    const std::string name = std::to_string(i);
    s.As(attach()).Create("U" + name, KiB(4)).Create("F" + name, KiB(4)).Free("F" + name);
  }
  const ClientId honest = attach();
  s.As(honest).Make("K", KiB(4));
  s.As(mine).Create("M", KiB(256) - s.world().planner().DeviceTier(DeviceId{0}).held);
  s.SlabsCome(false).Create("L", KiB(4));
  const Tick began = s.world().now();
  size_t most = 0;
  while (s.StateOf("L") == State::kWaiting && s.world().now() < began + milliseconds(2000)) {
    s.AllCopiesDone();
    const auto& jobs = s.world().slab_jobs();
    const auto kept = [&](const World::SlabJob& job) {
      return job.kind == World::SlabJob::Kind::kRemove && job.client != mine &&
             job.client != honest;
    };
    most = std::max(most, static_cast<size_t>(std::count_if(jobs.begin(), jobs.end(), kept)));
    const auto done = std::find_if_not(jobs.begin(), jobs.end(), kept);
    if (done != jobs.end()) {
      s.world().FinishSlab(static_cast<size_t>(done - jobs.begin()), true);
    } else {
      s.Pass(milliseconds(1));
    }
  }
  EXPECT_EQ(s.StateOf("L"), State::kInUse);
  EXPECT_LE(s.world().now() - began, milliseconds(50));
  EXPECT_EQ(most, size_t{kSilent});
}

// A client that takes a moment longer is no reason to empty others' slabs.
TEST(PlannerSlabsTest, WhoLetsGoSoonEnoughIsAskedAlone) {
  Script s({.capacity = KiB(32), .slab = KiB(4)});
  const ClientId mine = s.me();
  for (const char* name : {"A", "B", "C", "D", "E", "F", "G", "H"}) {
    s.As(s.world().Attach(Script::kTenant, {.device = KiB(32), .host = KiB(1024)}));
    s.Make(name, KiB(4));
  }
  s.As(mine).SlabsCome(false).Create("L", KiB(4)).AllCopiesDone();
  for (int i = 0; i < 9; ++i) s.Pass(milliseconds(1)).AllCopiesDone();
  EXPECT_EQ(s.world().slab_jobs().size(), 1u);
  s.SlabsCome(true);
  EXPECT_EQ(s.StateOf("L"), State::kInUse);
  s.Use("L");
}

}  // namespace
}  // namespace ravenstore::core
