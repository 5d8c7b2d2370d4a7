#include "daemon/store_views.h"

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

using StoreViewsTest = PageStoreFixture;

constexpr ClientId kSecond{2};

TEST_F(StoreViewsTest, AGuaranteeIsShownAndKeptFromOthersCalls) {
  EXPECT_EQ(store_->views().View(kTenant, kDevice).guarantee, MiB(2)) << "by default";
  Apply(core::TenantLimits{
      kTenant, {.device = MiB(8), .host = MiB(64), .device_guarantee = MiB(4), .weight = 3}});
  EXPECT_EQ(store_->views().View(kTenant, kDevice).guarantee, MiB(4));
  EXPECT_EQ(store_->views().View(kClient).weight, 3u);
  EXPECT_EQ(store_->views().Guaranteed(kDevice, kOther), Bytes{}) << "of what it holds";
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
  EXPECT_EQ(store_->views().Guaranteed(kDevice, kOther), MiB(4));
  EXPECT_EQ(store_->views().Guaranteed(kDevice, kTenant), Bytes{});
  Detach(kClient);
  Create(SlotId{2}, kSecond);
}

TEST_F(StoreViewsTest, AnErrorNamesTheHoldersAndOfOtherUsersTheSumsAlone) {
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

TEST_F(StoreViewsTest, PinnedMemoryIsWithinTheBudgetsOfTheHostPool) {
  Apply(core::TenantLimits{kTenant, {.device = MiB(8), .host = MiB(10)}});
  EXPECT_TRUE(store_->views().MayPin(kClient, MiB(4), MiB(4)).ok());
  Apply(core::PinnedHeld{kTenant, MiB(8)});
  Apply(core::PinnedUsed{kClient, MiB(8)});
  const core::Status refused = store_->views().MayPin(kClient, MiB(4), MiB(4));
  EXPECT_NE(refused.error().message.find("; holders: client 1 holds 8.0 MiB pinned;"),
            std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(store_->views().MayPin(kClient, MiB(4), MiB(4), {.own = MiB(2), .others = {}}).ok());
}

class RepeatedPassTest : public StoreViewsTest {
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
        const TensorId tensor = store_->views().Find(kClient, SlotId{slot});
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
    return store_->views().Explain(store_->views().Find(kClient, SlotId{1}), ipc::Now());
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

TEST_F(StoreViewsTest, AnExplanationHasWhatTheClientSaid) {
  using Future = core::Explanation::Future;
  const TensorId tensor = Create(SlotId{0});
  core::PutSeen put{.tensor = tensor, .writes = 1, .next_use = {}};
  Apply(put);
  Apply(core::StreamComplete{tensor});
  core::Explanation why = store_->views().Explain(tensor, ipc::Now() + std::chrono::seconds(5));
  EXPECT_EQ(why.future, Future::kUnknown);
  EXPECT_GE(why.last_put_ago, std::chrono::seconds(5));
  EXPECT_EQ(why.gets, 0u);
  EXPECT_GT(why.value, 0);
  EXPECT_GT(why.copy_out, core::Duration{0}) << "it was written";
  EXPECT_GT(why.copy_back, core::Duration{0});
  Apply(core::GetSeen{tensor});
  EXPECT_EQ(store_->views().Explain(tensor, ipc::Now()).value, 0) << "in use: it cannot leave";
  put.next_use = {core::NextUse::Kind::kIn, std::chrono::seconds(100), 0};
  Apply(put);
  Apply(core::StreamComplete{tensor});
  why = store_->views().Explain(tensor, ipc::Now() + std::chrono::seconds(5));
  EXPECT_EQ(why.future, Future::kHintedTime);
  EXPECT_GT(why.needed_in, std::chrono::seconds(60));
  EXPECT_LE(why.needed_in, std::chrono::seconds(95));
  EXPECT_EQ(why.last_put_ago, core::Duration{0});
  EXPECT_EQ(why.gets, 1u);
  put.next_use = {core::NextUse::Kind::kOrder, {}, 3};
  Apply(put);
  EXPECT_EQ(store_->views().Explain(tensor, ipc::Now()).future, Future::kHintedOrder);
}

}  // namespace
}  // namespace ravenstore::daemon
