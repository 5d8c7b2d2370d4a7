// Waiting for another client where that takes less than copying would.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "core/planner.h"
#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// A backward pass frees faster than the link copies.
class PlannerFreesTest : public ::testing::Test {
 protected:
  void Attach(bool clean) {
    mine_ = s_.me();
    for (const char* name : kMine) s_.Make(name, MiB(16));
    if (clean) {
      s_.DeviceCapacity(MiB(8)).AllCopiesDone().DeviceCapacity(MiB(256));
      for (const char* name : kMine) s_.Get(name).AllCopiesDone().Use(name).PutUnchanged(name);
    }
    s_.As(s_.world().Attach(Script::kTenant, {.device = MiB(256), .host = MiB(512)}));
    for (int i = 0; i < 30; ++i) s_.Make("T" + std::to_string(i), MiB(6));
    for (int i = 29; i >= 0; --i) s_.Get("T" + std::to_string(i));
    // In every slab something is in use still.
    for (int i = 29; i >= 0; i -= 2) s_.Free("T" + std::to_string(i));
    s_.As(mine_).Create("E", MiB(32));
  }

  static constexpr const char* kMine[] = {"A", "B", "C", "D"};
  Script s_{{.capacity = MiB(256), .slab = MiB(8), .host = MiB(512), .host_budget = MiB(512)}};
  ClientId mine_{};
};

TEST_F(PlannerFreesTest, SlabsThatAnotherClientIsAboutToFreeAreWaitedFor) {
  Attach(/*clean=*/false);
  EXPECT_EQ(s_.StateOf("E"), State::kWaiting);
  EXPECT_TRUE(s_.world().copies().empty());
  for (int i = 28; i >= 14; i -= 2) s_.Free("T" + std::to_string(i));
  s_.Pass(microseconds(200));
  EXPECT_EQ(s_.StateOf("E"), State::kInUse);
  EXPECT_TRUE(s_.world().copies().empty());
}

TEST_F(PlannerFreesTest, OneThatFreesNoMoreIsNotWaitedForLong) {
  Attach(/*clean=*/false);
  EXPECT_EQ(s_.StateOf("E"), State::kWaiting);
  s_.Pass(milliseconds(5));
  EXPECT_FALSE(s_.world().copies().empty());
  s_.AllCopiesDone();
  EXPECT_EQ(s_.StateOf("E"), State::kInUse);
}

TEST_F(PlannerFreesTest, WhatNeedsNoCopyLeavesInstead) {
  Attach(/*clean=*/true);
  EXPECT_EQ(s_.StateOf("E"), State::kInUse);
  EXPECT_TRUE(s_.world().copies().empty());
}

// Where nothing that is in use can make way, and all else leaves.
class PlannerLastResortTest : public ::testing::Test {
 protected:
  void Make(const std::string& name, int count, Bytes size = KiB(4)) {
    for (int i = 0; i < count; ++i) {
      const std::string one = name + std::to_string(i);
      s_.Create(one, size);
      ASSERT_EQ(Answer(one), State::kInUse) << one;
      s_.Put(one);
    }
  }
  // Every second one is in use from now on.
  void UseHalf(const std::string& name, int count) {
    for (int i = 1; i < count; i += 2) s_.Get(name + std::to_string(i));
  }
  ClientId AttachOther(Bytes budget) {
    return s_.world().Attach(Script::kTenant, {.device = budget, .host = KiB(1024)});
  }
  State Answer(const std::string& name) {
    for (int i = 0; i < 50 && s_.StateOf(name) == State::kWaiting; ++i)
      s_.AllCopiesDone().Pass(milliseconds(5));
    return s_.StateOf(name);
  }

  Script s_{{.capacity = KiB(64), .slab = KiB(4)}};
};

TEST_F(PlannerLastResortTest, TheOwnBudgetAndTheDeviceMayBindAtOnce) {
  s_.Budget(KiB(48));
  Make("A", 10);
  UseHalf("A", 10);
  const ClientId mine = s_.me();
  s_.As(AttachOther(KiB(64)));
  Make("B", 6);
  s_.As(mine).Create("large", KiB(28));
  EXPECT_EQ(Answer("large"), State::kInUse);
}

TEST_F(PlannerLastResortTest, AnOlderRequestThatNothingHelpsKeepsNothingFromAYounger) {
  Make("A", 8);
  UseHalf("A", 8);
  const ClientId mine = s_.me();
  s_.As(AttachOther(KiB(64)));
  Make("B", 8);
  UseHalf("B", 8);
  s_.As(mine).Create("too large", KiB(40)).Pass(milliseconds(20)).AllCopiesDone();
  ASSERT_EQ(Answer("too large"), State::kWaiting);
  s_.As(s_.world().Clients().back()).Create("small", KiB(28));
  EXPECT_EQ(Answer("small"), State::kInUse);
  EXPECT_EQ(s_.StateOf("too large"), State::kWaiting);
}

TEST_F(PlannerLastResortTest, WhoWasRefusedForPiecesGetsWhatItPutMeanwhileSideBySide) {
  constexpr int kCount = 96;  // two in the smallest slab
  Make("A", kCount, Bytes(512));
  UseHalf("A", kCount);
  s_.FailStuck(true).Create("large", KiB(20));
  ASSERT_EQ(Answer("large"), State::kRefused);
  EXPECT_NE(s_.Words("large").find("in pieces"), std::string::npos) << s_.Words("large");
  for (int i = 1; i < kCount; i += 2) s_.Put("A" + std::to_string(i));
  s_.Create("large again", KiB(20));
  EXPECT_EQ(Answer("large again"), State::kInUse);
  for (int i = 1; i < kCount; i += 2) {
    s_.Get("A" + std::to_string(i));
    EXPECT_EQ(Answer("A" + std::to_string(i)), State::kInUse);
  }
  s_.Create("one more", KiB(16));
  EXPECT_EQ(Answer("one more"), State::kInUse);
}

// Two that train: each fills 160 KiB in 0.16 ms, and frees them. 64 KiB take the link a
// millisecond.
class PlannerPeaksTest : public ::testing::Test {
 protected:
  static constexpr int kTensors = 16;

  void Attach(Bytes capacity, bool second_trims = true) {
    s_.emplace(Script::Setting{.capacity = capacity,
                               .slab = KiB(8),
                               .host = MiB(1),
                               .host_budget = MiB(1),
                               .link = link_});
    first_ = s_->me();
    second_ = s_->world().Attach(Script::kTenant, {.device = capacity, .host = MiB(1)});
    for (const std::string iteration : {"a", "b"}) {
      for (const ClientId client : {first_, second_}) {
        Rise(client, iteration, 0, kTensors);
        Fall(client, iteration);
        if (client == first_ || iteration == "a" || second_trims) s_->Trim();
      }
    }
    out_ = s_->stats().out;
  }
  void Rise(ClientId client, const std::string& iteration, int from, int to) {
    s_->As(client);
    for (int i = from; i < to; ++i) s_->Make(Name(client, iteration, i), KiB(10)).Pass(step_);
  }
  void Fall(ClientId client, const std::string& iteration) {
    s_->As(client);
    for (int i = kTensors - 1; i >= 0; --i) {
      const std::string name = Name(client, iteration, i);
      s_->Get(name).Use(name).Free(name).Pass(step_);
    }
  }
  // The second client's first create, with so much of the first one's iteration done.
  State BeginBeside(int done) {
    Rise(first_, "c", 0, done);
    s_->As(second_).Create("begin", KiB(10));
    return s_->StateOf("begin");
  }
  std::string Name(ClientId client, const std::string& iteration, int i) const {
    return (client == first_ ? "A" : "B") + iteration + std::to_string(i);
  }

  Duration step_ = microseconds(10);
  // The first takes what it made back, so that its next large create finds no room.
  void UseRisen(int count) {
    s_->As(first_);
    for (int i = 0; i < count; ++i) s_->Get(Name(first_, "c", i));
  }

  double link_ = 50e6;
  std::optional<Script> s_;
  ClientId first_{};
  ClientId second_{};
  Bytes out_;  // copied out before
};

TEST_F(PlannerPeaksTest, OfTwoInStepOneWaitsUntilTheOtherIsPastItsPeak) {
  Attach(KiB(256));
  ASSERT_EQ(BeginBeside(3), State::kWaiting);
  Rise(first_, "c", 3, kTensors);
  EXPECT_EQ(s_->StateOf("begin"), State::kWaiting);
  s_->Pass(microseconds(200));
  EXPECT_EQ(s_->StateOf("begin"), State::kInUse);
  EXPECT_TRUE(s_->world().copies().empty());
  EXPECT_EQ(s_->stats().out, out_);
}

TEST_F(PlannerPeaksTest, TwoMayShareATenantsBudget) {
  Attach(KiB(330));
  s_->world().SetTenant(Script::kTenant, {.device = KiB(256), .host = MiB(1)});
  EXPECT_EQ(BeginBeside(3), State::kWaiting);
}

TEST_F(PlannerPeaksTest, TheOtherMayHaveTheRoomMeanwhile) {
  Attach(KiB(256), /*second_trims=*/false);
  ASSERT_EQ(BeginBeside(3), State::kWaiting);
  EXPECT_GE(s_->Held(), KiB(160));
  s_->As(first_);
  for (int i = 3; i < kTensors; ++i) {
    const std::string name = Name(first_, "c", i);
    s_->Create(name, KiB(10)).AllCopiesDone();
    EXPECT_EQ(s_->StateOf(name), State::kInUse) << name;
  }
  EXPECT_LE(s_->As(second_).Held(), KiB(256 - 130));
}

TEST_F(PlannerPeaksTest, OneThatIsHalfWayUpIsNotWaitedFor) {
  Attach(KiB(256));
  EXPECT_EQ(BeginBeside(10), State::kInUse);
}

TEST_F(PlannerPeaksTest, PeaksThatFitBesideEachOtherAreNotWaitedFor) {
  Attach(KiB(330));
  EXPECT_EQ(BeginBeside(3), State::kInUse);
}

TEST_F(PlannerPeaksTest, OneThatStopsIsNotWaitedForLong) {
  Attach(KiB(256));
  ASSERT_EQ(BeginBeside(3), State::kWaiting);
  s_->Pass(microseconds(400));
  EXPECT_EQ(s_->StateOf("begin"), State::kInUse);
}

TEST_F(PlannerPeaksTest, OneThatWaitsItselfIsNotWaitedForLong) {
  Attach(KiB(256));
  ASSERT_EQ(BeginBeside(3), State::kWaiting);
  UseRisen(3);
  s_->Create("large", KiB(250)).Pass(microseconds(300));  // its own time stands
  EXPECT_EQ(s_->StateOf("large"), State::kWaiting);
  EXPECT_EQ(s_->StateOf("begin"), State::kWaiting);
  s_->Pass(milliseconds(1));
  EXPECT_EQ(s_->StateOf("begin"), State::kInUse);
}

TEST_F(PlannerPeaksTest, HalfOfARequestsPatienceIsLeft) {
  step_ = milliseconds(20);
  link_ = 1e3;
  Attach(KiB(256));
  ASSERT_EQ(BeginBeside(3), State::kWaiting);
  UseRisen(3);
  s_->Create("large", KiB(250)).Pass(milliseconds(450));
  EXPECT_EQ(s_->StateOf("begin"), State::kWaiting);
  s_->Pass(milliseconds(100));
  EXPECT_EQ(s_->StateOf("begin"), State::kInUse);
}

TEST_F(PlannerPeaksTest, OneThatHasComeDownAgainIsNotWaitedFor) {
  Attach(KiB(256));
  Rise(first_, "c", 0, 1);
  const std::string name = Name(first_, "c", 0);
  s_->Get(name).Use(name).Free(name);
  s_->As(second_).Create("begin", KiB(10));
  EXPECT_EQ(s_->StateOf("begin"), State::kInUse);
}

TEST_F(PlannerPeaksTest, OneThatGoesIsNotWaitedFor) {
  Attach(KiB(256));
  ASSERT_EQ(BeginBeside(3), State::kWaiting);
  s_->world().Kill(first_);
  s_->FinishSlabs();
  EXPECT_EQ(s_->StateOf("begin"), State::kInUse);
}

TEST_F(PlannerPeaksTest, OneThatDoesNotWantToWaitDoesNot) {
  Attach(KiB(256));
  s_->FailFast(true);
  EXPECT_EQ(BeginBeside(3), State::kInUse);
}

TEST_F(PlannerPeaksTest, NothingElseOfItsClientWaitsBehindIt) {
  Attach(KiB(256));
  ASSERT_EQ(BeginBeside(3), State::kWaiting);
  s_->FailFast(true).Create("other", KiB(10));
  EXPECT_EQ(s_->StateOf("other"), State::kInUse);
  EXPECT_EQ(s_->StateOf("begin"), State::kInUse);
}

}  // namespace
}  // namespace ravenstore::core
