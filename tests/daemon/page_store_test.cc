#include "daemon/page_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>

#include "ipc/clock.h"
#include "tests/daemon/page_store_fixture.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::ClientId;
using core::MiB;
using core::SlotId;
using core::TensorId;

using PageStoreTest = PageStoreFixture;

TEST_F(PageStoreTest, ATensorLeavesAndComesBack) {
  ExpectComesBack(CreateAway());
}

TEST_F(PageStoreTest, TheStoreMayEndWhileTensorsAreAway) {
  CreateAway();
  workers_.reset();
  store_->EndCopies();
  store_.reset();
}

TEST_F(PageStoreTest, TheStoreMayEndWhileAClientThatIsGoneHasAPageMade) {
  AskFor(SlotId{0});
  store_->Poll(ipc::Now(), &plan_);
  Apply(core::ClientGone{kClient});
  EXPECT_FALSE(store_->IsQuiet(kClient));
  workers_.reset();
  store_->EndCopies();
  store_.reset();
}

// A process may say these before its hello, and a client that is gone may have said them.
TEST_F(PageStoreTest, NoticesOfAClientThatIsNotThereAreNone) {
  constexpr ClientId kStranger{77};
  Create(SlotId{0});
  Apply(core::ClientGone{kClient});
  for (const ClientId client : {kStranger, kClient}) {
    Apply(core::Trimmed{client});
    Apply(core::ClientLimits{client, {MiB(2), MiB(2)}});
    Apply(core::PinnedUsed{client, MiB(2)});
    Apply(core::PinnedWanted{client, MiB(2)});
  }
  AwaitEnd(kClient);
  Attach(kClient, kTenant);
  ExpectComesBack(CreateAway());
}

// An entry of the log that is read late, or a row that its client has scribbled on.
TEST_F(PageStoreTest, UsesThatAreSaidOfAnAwayTensorAreNone) {
  const TensorId tensor = CreateAway();
  Apply(core::GetSeen{tensor});
  Put(tensor, 2);
  ExpectComesBack(tensor);
}

TEST_F(PageStoreTest, UsesThatAreSaidOfATensorThatIsAskedForAreNone) {
  const TensorId tensor = CreateAway();
  Apply(core::FetchRequested{tensor, kDevice, core::kNever});
  Apply(core::GetSeen{tensor});
  Put(tensor, 2);
  EXPECT_EQ(Await<core::FetchReply>(SlotId{0}).tensor, tensor);
}

constexpr core::StreamId kStream{1};

TEST_F(PageStoreTest, AStreamHasThePlaceThatItFreedBeforeItHasComeThere) {
  const core::AllocReply first = CreateFor(kStream, SlotId{0});
  Apply(core::FreeSeen{first.tensor, kStream});
  const core::AllocReply next = CreateFor(kStream, SlotId{1});
  EXPECT_EQ(next.offset, first.offset);
  EXPECT_NE(CreateFor(core::StreamId{2}, SlotId{2}).offset, first.offset);
  EXPECT_FALSE(Take<core::Release>(SlotId{0})) << "its row is in use until the stream is there";
  Put(next.tensor, 1);
  Apply(core::Freed{first.tensor});
  EXPECT_TRUE(Take<core::Release>(SlotId{0}));
  Apply(core::Freed{next.tensor});
  EXPECT_TRUE(Take<core::Release>(SlotId{1}));
  store_->CheckInvariants();
}

// A client that breaks the protocol: its own loss.
TEST_F(PageStoreTest, WhatIsSaidOfAFreedTensorIsNotHeard) {
  const TensorId tensor = CreateFor(kStream, SlotId{0}).tensor;
  Put(tensor, 1);
  Apply(core::FreeSeen{tensor, kStream});
  Apply(core::FreeSeen{tensor, core::StreamId{2}});
  Apply(core::GetSeen{tensor});
  Put(tensor, 2);
  Apply(core::FetchRequested{tensor, kDevice, core::kNever});
  EXPECT_FALSE(store_->KeepInPlace(kClient, SlotId{0}, Keeping::kBegins).ok());
  for (int i = 0; i < 100; ++i) Pump();
  EXPECT_FALSE(Take<core::FetchReply>(SlotId{0}));
  Apply(core::Freed{tensor});
  Apply(core::Freed{tensor});
  EXPECT_TRUE(Take<core::Release>(SlotId{0}));
  ExpectComesBack(CreateAway());
}

// ---- Limits between clients.

constexpr ClientId kSecond{2};

TEST_F(PageStoreTest, ClientsOfATenantHoldNoMoreThanItsBudgetTogether) {
  Apply(core::TenantLimits{kTenant, {.device = MiB(6), .host = MiB(64)}});
  Fill(kClient, 0, 5);
  EXPECT_EQ(HeldBy(kClient), MiB(6));
  Attach(kSecond, kTenant);
  for (uint32_t slot = 0; slot < 5; ++slot) {
    Fill(kSecond, slot, 1);
    EXPECT_LE(HeldBy(kClient) + HeldBy(kSecond), MiB(6));
  }
  EXPECT_GT(HeldBy(kSecond), Bytes{});
  EXPECT_EQ(store_->View(kTenant, kDevice).held, HeldBy(kClient) + HeldBy(kSecond));
}

TEST_F(PageStoreTest, ACallGoesOnWhenAnotherClientOfItsTenantPuts) {
  Apply(core::TenantLimits{kTenant, {.device = MiB(6), .host = MiB(64)}});
  Attach(kSecond, kTenant);
  const TensorId first = Create(SlotId{0});
  const TensorId second = Create(SlotId{1});
  AskFor(SlotId{0}, kSecond, MiB(4));
  for (int i = 0; i < 1000; ++i) Pump();
  EXPECT_FALSE(Take<core::AllocReply>(SlotId{0}, kSecond).has_value());
  Put(first, 1);
  Put(second, 1);
  Await<core::AllocReply>(SlotId{0}, kSecond);
}

TEST_F(PageStoreTest, ACopyCountsForItsTenantToo) {
  Apply(core::TenantLimits{kTenant, {.device = MiB(8), .host = MiB(8)}});
  Attach(kSecond, kTenant);
  bool full = false;
  for (uint32_t slot = 0; slot < 8 && !full; ++slot) {
    for (const ClientId client : {kClient, kSecond}) {
      AskFor(SlotId{slot}, client, MiB(2), false, ipc::Now() + std::chrono::seconds(1));
      PumpUntil([&] { return !plan_.empty(); });
      full |= Take<core::AllocError>(SlotId{slot}, client).has_value();
      if (const auto reply = Take<core::AllocReply>(SlotId{slot}, client)) Put(reply->tensor, 1);
      EXPECT_LE(CopiesOf(kClient) + CopiesOf(kSecond), MiB(8));
    }
  }
  EXPECT_TRUE(full) << "each has room alone";
}

// A client that fills the pool with copies of tensors that are back keeps no other from it.
TEST_F(PageStoreTest, RedundantCopiesOfOthersMakeRoomForACallThatWaits) {
  Apply(core::TenantLimits{kTenant, {.device = MiB(8), .host = MiB(6)}});
  Fill(kClient, 0, 5);
  const auto& away = AwayOf(kClient);
  ASSERT_GE(away.size(), 1u);
  // They come back, and their copies stay.
  for (uint32_t slot = 0; slot < 5; ++slot) {
    if (away.count(SlotId{slot}) == 0) continue;
    Apply(core::FetchRequested{store_->Find(kClient, SlotId{slot}), kDevice, core::kNever});
    const TensorId tensor = Await<core::FetchReply>(SlotId{slot}).tensor;
    Put(tensor, 1);
  }
  // More than that of the one that is away; all of 6 MiB where one was made ahead.
  ASSERT_GE(CopiesOf(kClient), MiB(4));
  // One page: the first tensor leaves for the second.
  Attach(kSecond, kTenant, {MiB(2), MiB(64)});
  Fill(kSecond, 0, 2);
  EXPECT_EQ(CopiesOf(kSecond), MiB(2));
  EXPECT_EQ(CopiesOf(kClient), MiB(4));
}

// A page has no room in the host pool, and each tensor has.
TEST_F(PageStoreTest, TensorsAreExchangedWhereTheHostPoolHasNoRoomForAPage) {
  constexpr Bytes kSize = MiB(1) + core::KiB(512);
  Apply(core::TenantLimits{kTenant, {.device = MiB(6), .host = MiB(16)}});
  for (uint32_t slot = 0; slot < 6; ++slot) Put(CreateOn(kDevice, SlotId{slot}, kSize), 1);
  const auto& away = AwayOf(kClient);
  ASSERT_EQ(away.size(), 3u);
  Apply(core::TenantLimits{kTenant, {.device = MiB(6), .host = kSize * 4}});
  for (uint64_t round = 0; round < 20; ++round) {
    const SlotId slot = *away.begin();
    Apply(core::FetchRequested{store_->Find(kClient, slot), kDevice, core::kNever});
    Put(Await<core::FetchReply>(slot).tensor, round + 2);
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

// It has all of the device, and of the host pool all that is not kept.
TEST_F(PageStoreTest, PagesOfAClientThatHoldsAllLeaveForOthers) {
  constexpr auto kSoon = std::chrono::milliseconds(100);
  Attach(kSecond, kOther);
  for (uint32_t slot = 0;; ++slot) {
    AskFor(SlotId{slot}, kClient, MiB(2), /*fail_fast=*/false, ipc::Now() + kSoon);
    std::optional<core::AllocReply> reply;
    bool is_full = false;
    PumpUntil([&] {
      reply = Take<core::AllocReply>(SlotId{slot});
      is_full = Take<core::AllocError>(SlotId{slot}).has_value();
      return reply || is_full;
    });
    if (is_full) break;
    Put(reply->tensor, 1);
  }
  EXPECT_GE(CopiesOf(kClient), MiB(48));
  Create(SlotId{0}, kSecond);
}

TEST_F(PageStoreTest, AGuaranteeIsShownAndKeptFromOthersCalls) {
  EXPECT_EQ(store_->View(kTenant, kDevice).guarantee, MiB(2)) << "by default";
  Apply(core::TenantLimits{
      kTenant, {.device = MiB(8), .host = MiB(64), .device_guarantee = MiB(4), .weight = 3}});
  EXPECT_EQ(store_->View(kTenant, kDevice).guarantee, MiB(4));
  EXPECT_EQ(store_->View(kClient).weight, 3u);
  EXPECT_EQ(store_->Guaranteed(kDevice, kOther), Bytes{}) << "of what it holds";
  Apply(
      core::TenantLimits{kOther, {.device = MiB(8), .host = MiB(64), .device_guarantee = Bytes{}}});
  Attach(kSecond, kOther);
  Create(SlotId{0}, kSecond);
  Create(SlotId{1}, kSecond);
  AskFor(SlotId{2}, kSecond, MiB(2), /*fail_fast=*/true);
  const auto failed = Await<core::AllocError>(SlotId{2}, kSecond);
  EXPECT_NE(failed.error.message.find(" other tenants are guaranteed 4.0 MiB;"), std::string::npos)
      << failed.error.message;
  // While the other's spare page goes, a tensor may leave for the next one.
  for (uint32_t slot = 0; HeldBy(kClient) < MiB(4) && slot < 30; ++slot) Fill(kClient, slot, 1);
  EXPECT_EQ(HeldBy(kClient), MiB(4));
  EXPECT_EQ(store_->Guaranteed(kDevice, kOther), MiB(4));
  EXPECT_EQ(store_->Guaranteed(kDevice, kTenant), Bytes{});
  Detach(kClient);
  Create(SlotId{2}, kSecond);
}

TEST_F(PageStoreTest, AClientThatReleasesNothingKeepsNobodyFromPagesOfOthers) {
  constexpr ClientId kThird{3};
  for (uint32_t slot : {0u, 1u}) Apply(core::Freed{Create(SlotId{slot})});
  processes_.at(kClient)->is_stopped = true;
  Attach(kSecond, kOther);
  Fill(kSecond, 0, 2);
  Attach(kThird, kOther);
  Fill(kThird, 0, 1);
  EXPECT_EQ(HeldBy(kClient), MiB(4));
  EXPECT_EQ(HeldBy(kSecond), MiB(2));
  EXPECT_EQ(HeldBy(kThird), MiB(2));
}

class PageStoreOf64PagesTest : public PageStoreFixture {
 protected:
  PageStoreOf64PagesTest()
      : PageStoreFixture(device::OpenHostDevices({.total = MiB(256)}), {}, MiB(128), MiB(128)) {}
};

TEST_F(PageStoreOf64PagesTest, AUserWhoComesFindsMemoryThoughAnotherIsStopped) {
  constexpr ClientId kThird{3};
  const core::Budgets all{MiB(128), MiB(128)};
  Attach(kSecond, kTenant, all);
  Apply(core::TenantLimits{kTenant, all});
  Fill(kSecond, 0, 70);
  EXPECT_EQ(HeldBy(kSecond), MiB(128));
  Attach(kThird, kOther, all);
  PumpUntil([this] { return HeldBy(kSecond) == MiB(124); });
  processes_.at(kSecond)->is_stopped = true;
  Create(SlotId{0}, kThird);
  Create(SlotId{1}, kThird);
}

TEST_F(PageStoreTest, AnErrorNamesTheHoldersAndOfOtherUsersTheSumsAlone) {
  Attach(kSecond, kOther);
  Attach(ClientId{3}, kOther);
  Create(SlotId{0}, kSecond);
  Create(SlotId{0}, ClientId{3});
  Create(SlotId{0});
  AskFor(SlotId{1}, kClient, MiB(6), /*fail_fast=*/true);
  const std::string message = Await<core::AllocError>(SlotId{1}).error.message;
  EXPECT_NE(message.find("device 0: no room for 6.0 MiB within client 1's budget of 8.0 MiB"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("; holders: client 1 holds"), std::string::npos) << message;
  EXPECT_NE(message.find("(2.0 MiB in use); user 2 holds"), std::string::npos) << message;
  EXPECT_EQ(message.find("client 2"), std::string::npos) << message;
  EXPECT_EQ(message.find("client 3"), std::string::npos) << message;
}

TEST_F(PageStoreTest, PinnedMemoryIsWithinTheBudgetsOfTheHostPool) {
  Apply(core::TenantLimits{kTenant, {.device = MiB(8), .host = MiB(10)}});
  EXPECT_TRUE(store_->MayPin(kClient, MiB(4), MiB(4)).ok());
  Apply(core::PinnedHeld{kTenant, MiB(8)});
  Apply(core::PinnedUsed{kClient, MiB(8)});
  const core::Status refused = store_->MayPin(kClient, MiB(4), MiB(4));
  EXPECT_NE(refused.error().message.find("; holders: client 1 holds 8.0 MiB pinned;"),
            std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(store_->MayPin(kClient, MiB(4), MiB(4), {.own = MiB(2), .others = {}}).ok());
}

// ---- Priorities, and what users see.

TEST_F(PageStoreTest, ATensorOfLowPriorityLeavesFirst) {
  const TensorId low = Create(SlotId{0});
  const TensorId high = Create(SlotId{1});
  Put(Create(SlotId{2}), 1);
  Put(low, 1, core::Priority::kLow);
  Put(high, 1, core::Priority::kHigh);
  Fill(kClient, 3, 4);
  const auto& away = AwayOf(kClient);
  EXPECT_EQ(away.count(SlotId{0}), 1u);
  EXPECT_EQ(away.count(SlotId{1}), 0u);
  EXPECT_EQ(store_->Explain(low, ipc::Now()).priority, core::Priority::kLow);
}

// A later put may say an earlier time.
TEST_F(PageStoreTest, ATensorThatIsNeededLaterByTheClockLeavesFirst) {
  const auto put_for = [this](SlotId slot, std::chrono::seconds needed_in) {
    const TensorId tensor = Create(slot);
    Apply(core::PutSeen{
        .tensor = tensor, .writes = 1, .next_use = {core::NextUse::Kind::kIn, needed_in, 0}});
    Apply(core::StreamComplete{tensor});
  };
  put_for(SlotId{0}, std::chrono::seconds(300));
  put_for(SlotId{1}, std::chrono::seconds(100));
  put_for(SlotId{2}, std::chrono::seconds(200));
  put_for(SlotId{3}, std::chrono::seconds(20));
  put_for(SlotId{4}, std::chrono::seconds(10));
  EXPECT_EQ(AwayOf(kClient).count(SlotId{0}), 1u);
  EXPECT_EQ(AwayOf(kClient).count(SlotId{1}), 0u);
}

class RepeatedPassTest : public PageStoreTest {
 protected:
  // Passes of creates that are read in the opposite order. The last one ends after `creates`.
  void RunPasses(int passes, bool marks_steps, uint32_t creates) {
    Put(Create(SlotId{6}), 1);  // before the first pass
    for (int pass = 1; pass <= passes; ++pass) {
      if (marks_steps) Apply(core::StepMarked{kClient});
      const uint32_t last = pass == passes ? creates : 6;
      for (uint32_t slot = 0; slot < last; ++slot) Put(Create(SlotId{slot}), 1);
      if (pass == passes) return;
      for (uint32_t slot = 6; slot-- > 0;) {
        const TensorId tensor = store_->Find(kClient, SlotId{slot});
        if (AwayOf(kClient).count(SlotId{slot}) > 0) {
          Apply(core::FetchRequested{tensor, kDevice, core::kNever});
          Await<core::FetchReply>(SlotId{slot});
        } else {
          Apply(core::GetSeen{tensor});
        }
        Apply(core::Freed{tensor});
      }
    }
  }
  core::Explanation Explain() {
    return store_->Explain(store_->Find(kClient, SlotId{1}), ipc::Now());
  }
  // The plan is made on another thread.
  void AwaitPlan() {
    PumpUntil([&] { return Explain().future == core::Explanation::Future::kLearned; });
  }
};

TEST_F(RepeatedPassTest, AnExplanationHasTheNextNeedByThePlan) {
  RunPasses(4, /*marks_steps=*/false, 6);
  AwaitPlan();
  const core::Explanation why = Explain();
  EXPECT_GT(why.confidence, 0.5);
  EXPECT_GT(why.predictions_right, 0u);
}

TEST_F(RepeatedPassTest, TheThirdPassIsFollowedFromItsBeginningIfStepsAreMarked) {
  RunPasses(3, /*marks_steps=*/true, 2);
  AwaitPlan();
}

TEST_F(RepeatedPassTest, TheThirdPassIsNotKnownAtItsBeginningWithoutMarks) {
  RunPasses(3, /*marks_steps=*/false, 2);
  for (int i = 0; i < 100; ++i) Pump();
  EXPECT_EQ(Explain().future, core::Explanation::Future::kUnknown);
}

TEST_F(PageStoreTest, AnExplanationHasWhatTheClientSaid) {
  using Future = core::Explanation::Future;
  const TensorId tensor = Create(SlotId{0});
  core::PutSeen put{.tensor = tensor, .writes = 1, .next_use = {}};
  Apply(put);
  Apply(core::StreamComplete{tensor});
  core::Explanation why = store_->Explain(tensor, ipc::Now() + std::chrono::seconds(5));
  EXPECT_EQ(why.future, Future::kUnknown);
  EXPECT_GE(why.last_put_ago, std::chrono::seconds(5));
  EXPECT_EQ(why.gets, 0u);
  EXPECT_GT(why.value, 0);
  EXPECT_GT(why.copy_out, core::Duration{0}) << "it was written";
  EXPECT_GT(why.copy_back, core::Duration{0});
  Apply(core::GetSeen{tensor});
  EXPECT_EQ(store_->Explain(tensor, ipc::Now()).value, 0) << "in use: it cannot leave";
  put.next_use = {core::NextUse::Kind::kIn, std::chrono::seconds(100), 0};
  Apply(put);
  Apply(core::StreamComplete{tensor});
  why = store_->Explain(tensor, ipc::Now() + std::chrono::seconds(5));
  EXPECT_EQ(why.future, Future::kHintedTime);
  EXPECT_GT(why.needed_in, std::chrono::seconds(60));
  EXPECT_LE(why.needed_in, std::chrono::seconds(95));
  EXPECT_EQ(why.last_put_ago, core::Duration{0});
  EXPECT_EQ(why.gets, 1u);
  put.next_use = {core::NextUse::Kind::kOrder, {}, 3};
  Apply(put);
  EXPECT_EQ(store_->Explain(tensor, ipc::Now()).future, Future::kHintedOrder);
}

}  // namespace
}  // namespace ravenstore::daemon
