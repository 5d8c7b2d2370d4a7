#include "daemon/page_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

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

TEST_F(PageStoreTest, TheStoreMayEndWhileADepartedClientHasAPageMade) {
  AskFor(SlotId{0});
  store_->Poll(ipc::Now(), &plan_);
  Apply(core::ClientRemoved{kClient});
  EXPECT_FALSE(store_->Forget(kClient));
  workers_.reset();
  store_->EndCopies();
  store_.reset();
}

// A process may say these before its hello, and a client that is gone may have said them.
TEST_F(PageStoreTest, NoticesOfAClientThatIsNotThereAreNone) {
  constexpr ClientId kStranger{77};
  Create(SlotId{0});
  Apply(core::ClientRemoved{kClient});
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

// Its page was about to leave while the client had begun the get.
TEST_F(PageStoreTest, ATensorThatAGetFailedForMayLeave) {
  const TensorId tensor = Create(SlotId{0});
  Put(tensor, 1);
  processes_.at(kClient)->getting.insert(SlotId{0});
  AskFor(SlotId{1}, kClient, MiB(8));
  PumpUntil([this] { return store_->views().stats().rescues == 1; });
  for (int i = 0; i < 100; ++i) Pump();
  EXPECT_FALSE(Take<core::AllocReply>(SlotId{1}));
  // So the loop says after the error.
  processes_.at(kClient)->getting.clear();
  Apply(core::StreamComplete{tensor});
  Put(Await<core::AllocReply>(SlotId{1}).tensor, 1);
  ExpectComesBack(tensor);
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
  store_->views().CheckInvariants();
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
  EXPECT_EQ(store_->views().View(kTenant, kDevice).held, HeldBy(kClient) + HeldBy(kSecond));
}

TEST_F(PageStoreTest, ANewClientThatFailsFastGetsWhatTheNextDivisionGivesIt) {
  Fill(kClient, 0, 4);  // all of the device, so that its pages are divided by need
  Attach(kSecond, kTenant);
  AskFor(SlotId{0}, kSecond, MiB(2), /*fail_fast=*/true);
  Await<core::AllocReply>(SlotId{0}, kSecond);
  AskFor(SlotId{1}, kSecond, MiB(8), /*fail_fast=*/true);
  Await<core::AllocError>(SlotId{1}, kSecond);
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
  Apply(core::TenantLimits{kTenant, {.device = MiB(8), .host = MiB(8)}});
  Fill(kClient, 0, 5);
  const auto& away = AwayOf(kClient);
  ASSERT_GE(away.size(), 1u);
  // They come back, and their copies stay.
  for (uint32_t slot = 0; slot < 5; ++slot) {
    if (away.count(SlotId{slot}) == 0) continue;
    Apply(core::FetchRequested{store_->views().Find(kClient, SlotId{slot}), kDevice, core::kNever});
    const TensorId tensor = Await<core::FetchReply>(SlotId{slot}).tensor;
    Put(tensor, 1);
  }
  // More than that of the one that is away; all but a page of the limit where one was made ahead.
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
  ASSERT_GE(away.size(), 3u);
  Apply(core::TenantLimits{kTenant, {.device = MiB(6), .host = kSize * (away.size() + 1)}});
  for (uint64_t round = 0; round < 20; ++round) {
    const SlotId slot = *away.begin();
    Apply(core::FetchRequested{store_->views().Find(kClient, slot), kDevice, core::kNever});
    Put(Await<core::FetchReply>(slot).tensor, round + 2);
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

// It has all of the device, and of the host pool all that is not kept, but for a page.
TEST_F(PageStoreTest, PagesOfAClientThatHoldsAllLeaveForOthers) {
  Attach(kSecond, kOther);
  Fill(kClient, 0, 4 + 24 - 1);
  EXPECT_EQ(CopiesOf(kClient), MiB(46));
  AskFor(SlotId{27}, kClient, MiB(2), false, ipc::Now() + std::chrono::milliseconds(100));
  Await<core::AllocError>(SlotId{27});
  Create(SlotId{0}, kSecond);
}

TEST_F(PageStoreTest, AClientThatReleasesNothingKeepsNoOtherFromPagesOfOthers) {
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

TEST_F(PageStoreOf64PagesTest, ANewUserFindsMemoryThoughAnotherIsStopped) {
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

// ---- A full host pool.

// It is there before the store, and after.
struct FaultyDevice {
  std::atomic<bool> fails{false};  // copies to the device
  device::Devices devices = device::OpenHostDevices(
      {.total = MiB(64), .fault = [this](device::HostStep step) {
         const bool is_fault = fails && step.kind == device::HostStep::Kind::kUp;
         return is_fault ? device::HostFault::kRefused : device::HostFault::kNone;
       }});
};

// Clients of one page each, whose creates have filled the host pool of 16 MiB or their tenant's
// part of it.
class FullHostPoolTest : private FaultyDevice, public PageStoreFixture {
 protected:
  static constexpr std::array<ClientId, 4> kAll{ClientId{11}, ClientId{12}, ClientId{13},
                                                ClientId{14}};

  FullHostPoolTest() : PageStoreFixture(FaultyDevice::devices, {}, MiB(16), MiB(8)) {
    Detach(kClient);
    // Pages go to the first of those that lack as many. It has no tensor.
    Attach(kSecond, kTenant, {MiB(2), MiB(64)});
    Apply(core::Freed{Create(SlotId{0}, kSecond)});
    for (const ClientId client : kAll) Attach(client, kTenant, {MiB(2), MiB(64)});
  }
  static constexpr core::Duration kPatience = std::chrono::seconds(60);
  // A page each on the device; three quarters of the pool for one tenant, without a page.
  static constexpr uint32_t kTensors = 4 + 6 - 1;

  // Returns false if it is refused.
  bool TryCreate(ClientId client, core::Duration within = std::chrono::milliseconds(100)) {
    const SlotId slot{created_[client]};
    AskFor(slot, client, MiB(2), false, ipc::Now() + within);
    std::optional<core::AllocReply> reply;
    bool is_refused = false;
    PumpUntil([&] {
      reply = Take<core::AllocReply>(slot, client);
      is_refused = Take<core::AllocError>(slot, client).has_value();
      return reply || is_refused;
    });
    if (!reply) return false;
    ++created_[client];
    Put(reply->tensor, 1);
    return true;
  }
  // With that number of tensors, of the clients in turn.
  void FillHostPool(uint32_t tensors) {
    for (uint32_t i = 0; i < tensors; ++i)
      ASSERT_TRUE(TryCreate(kAll[i % kAll.size()], kPatience)) << i;
    for (const ClientId client : kAll) EXPECT_FALSE(TryCreate(client));
  }
  TensorId TensorOf(ClientId client, SlotId slot) { return store_->views().Find(client, slot); }
  void AskForAway(ClientId client) {
    asked_[client] = *AwayOf(client).begin();
    Apply(core::FetchRequested{TensorOf(client, asked_[client]), kDevice, core::kNever});
  }
  void FreeResident(ClientId client) {
    uint32_t slot = 0;
    while (AwayOf(client).count(SlotId{slot}) > 0) ++slot;
    Apply(core::Freed{TensorOf(client, SlotId{slot})});
  }
  // All at a time, each for a tensor that is away, which it then changes.
  void ExpectGetsGoOn() {
    for (uint32_t round = 0; round < 10; ++round) {
      for (const ClientId client : kAll) AskForAway(client);
      for (const ClientId client : kAll) {
        const TensorId tensor = Await<core::FetchReply>(asked_[client], client).tensor;
        ASSERT_FALSE(HasFailure()) << "round " << round;
        Put(tensor, round + 2);
      }
    }
  }

  void SetFaults(bool on) { fails = on; }

  std::map<ClientId, uint32_t> created_;
  std::map<ClientId, SlotId> asked_;
};

TEST_F(FullHostPoolTest, GetsGoOnWhereCreatesHaveFilledThePool) {
  FillHostPool(kTensors);
  ExpectGetsGoOn();
}

TEST_F(FullHostPoolTest, GetsGoOnWhereCreatesHaveFilledTheTenantsPart) {
  Apply(core::TenantLimits{kTenant, {.device = MiB(8), .host = MiB(10)}});
  FillHostPool(kTensors - 1);
  ExpectGetsGoOn();
}

// Its page would come from a client whose tensor cannot leave.
TEST_F(FullHostPoolTest, GetsGoOnWhileACreateOfANewClientWaits) {
  FillHostPool(kTensors);
  AskFor(SlotId{0}, kSecond);
  ExpectGetsGoOn();
  EXPECT_FALSE(Take<core::AllocReply>(SlotId{0}, kSecond));
  EXPECT_FALSE(Take<core::AllocError>(SlotId{0}, kSecond)) << "it waits";
  EXPECT_EQ(HeldBy(kSecond), Bytes{});
}

// Its page is free then, and the tensor that has left for it is in the room for exchanges.
TEST_F(FullHostPoolTest, AfterAGetThatFailsNoCreateHasTheRoomForExchanges) {
  FillHostPool(kTensors);
  SetFaults(true);
  AskForAway(kAll[0]);
  Await<core::FetchError>(asked_[kAll[0]], kAll[0]);
  SetFaults(false);
  EXPECT_FALSE(TryCreate(kAll[0]));
  ExpectGetsGoOn();
}

TEST_F(FullHostPoolTest, ATensorComesBackToAFreePageToMakeRoomForOthers) {
  FillHostPool(kTensors);
  FreeResident(kAll[0]);
  EXPECT_TRUE(TryCreate(kAll[1], kPatience));
  EXPECT_FALSE(TryCreate(kAll[1]));
  ExpectGetsGoOn();
}

// With a fifth client, whose tensor leaves for theirs: one client has no page.
class PagelessClientTest : public FullHostPoolTest {
 protected:
  PagelessClientTest() {
    Attach(kFifth, kTenant, {MiB(2), MiB(64)});
    EXPECT_TRUE(TryCreate(kFifth, kPatience));
    FillHostPool(kTensors - 1);
    EXPECT_TRUE(std::any_of(kAll.begin(), kAll.end(),
                            [this](ClientId client) { return HeldBy(client) == Bytes{}; }));
  }
  // One after the other; `modifies`: each changes its tensor.
  void ExpectGetsGoOnInTurn(bool modifies = true) {
    for (uint32_t round = 0; round < 10; ++round) {
      for (const ClientId client : {kFifth, kAll[0], kAll[1], kAll[2], kAll[3]}) {
        if (AwayOf(client).empty()) continue;
        AskForAway(client);
        const TensorId tensor = Await<core::FetchReply>(asked_[client], client).tensor;
        ASSERT_FALSE(HasFailure()) << "round " << round << ", client " << core::ToInt(client);
        Put(tensor, modifies ? round + 2 : 1);
      }
    }
  }

  static constexpr ClientId kFifth{15};
};

TEST_F(PagelessClientTest, GetsGoOn) {
  ExpectGetsGoOnInTurn();
}

// The copies of their tensors stay, and are redundant.
TEST_F(PagelessClientTest, GetsThatReadGoOn) {
  ExpectGetsGoOnInTurn(/*modifies=*/false);
}

TEST_F(PagelessClientTest, GetsGoOnWhileACreateOfANewClientWaits) {
  AskFor(SlotId{0}, kSecond);
  ExpectGetsGoOnInTurn();
  EXPECT_FALSE(Take<core::AllocReply>(SlotId{0}, kSecond));
  EXPECT_FALSE(Take<core::AllocError>(SlotId{0}, kSecond)) << "it waits";
  EXPECT_EQ(HeldBy(kSecond), Bytes{});
}

TEST_F(PagelessClientTest, ACreateThatWaitsHasTheRoomOfClientsThatLeave) {
  AskFor(SlotId{0}, kSecond);
  for (const ClientId client : kAll) Apply(core::ClientRemoved{client});
  Await<core::AllocReply>(SlotId{0}, kSecond);
  for (const ClientId client : kAll) AwaitEnd(client);
}

TEST_F(FullHostPoolTest, PinnedMemoryLeavesRoomForExchanges) {
  Apply(core::TenantLimits{kTenant, {.device = MiB(8), .host = MiB(10)}});
  EXPECT_TRUE(store_->views().MayPin(kAll[0], MiB(10), MiB(10)).ok()) << "nothing is exchanged";
  while (CopiesOf(kAll[0]) < MiB(4)) ASSERT_TRUE(TryCreate(kAll[0], kPatience));
  EXPECT_FALSE(store_->views().MayPin(kAll[0], MiB(6), MiB(6)).ok());
  EXPECT_TRUE(store_->views().MayPin(kAll[0], MiB(4), MiB(4)).ok());
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
  EXPECT_EQ(store_->views().Explain(low, ipc::Now()).priority, core::Priority::kLow);
}

// A later put may say an earlier time.
TEST_F(PageStoreTest, ATensorThatIsNeededLaterByTheClockLeavesFirst) {
  const auto put_for = [this](TensorId tensor, std::chrono::seconds needed_in) {
    Apply(core::PutSeen{
        .tensor = tensor, .writes = 1, .next_use = {core::NextUse::Kind::kIn, needed_in, 0}});
    Apply(core::StreamComplete{tensor});
  };
  std::array<TensorId, 3> first{};
  for (uint32_t slot = 0; slot < 3; ++slot) first[slot] = Create(SlotId{slot});
  put_for(first[0], std::chrono::seconds(300));
  put_for(first[1], std::chrono::seconds(100));
  put_for(first[2], std::chrono::seconds(200));
  put_for(Create(SlotId{3}), std::chrono::seconds(20));
  Create(SlotId{4});
  // More than one may leave while the first is on its way.
  EXPECT_EQ(AwayOf(kClient).count(SlotId{0}), 1u);
  EXPECT_LE(AwayOf(kClient).count(SlotId{1}), AwayOf(kClient).count(SlotId{2}));
}

}  // namespace
}  // namespace ravenstore::daemon
