// PageStore alone: a test says what a client did, and its mapper acknowledges without mapping.
#include "daemon/page_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/away_memory.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::ClientId;
using core::DeviceId;
using core::MiB;
using core::SlotId;
using core::TensorId;

constexpr ClientId kClient{1};
constexpr core::TenantId kTenant{1};
constexpr core::TenantId kOther{2};
constexpr DeviceId kDevice{0};
constexpr uint64_t kGuaranteedPart = 4;

// A client's segment and mapper.
struct Process {
  Process(ClientId id, core::TenantId tenant)
      : attachment(
            std::make_shared<Attachment>(Attachment{id,
                                                    tenant,
                                                    {},
                                                    0,
                                                    0,
                                                    "a test",
                                                    std::move(*ipc::ControlSegment::Create(1)),
                                                    std::move(*ipc::Doorbell::Create()),
                                                    {}})),
        maps(&attachment->segment->maps),
        mapper(&attachment->segment->maps) {
    attachment->arenas.resize(1);
  }

  std::shared_ptr<Attachment> attachment;
  MapOrders maps;
  ipc::MapConsumer mapper;
  std::set<SlotId> away;
};

class PageStoreTest : public testing::Test {
 protected:
  PageStoreTest() {
    memory_ = HostMemory(devices_, std::move(*devices_[0]->ReservePoolVaRange(MiB(64), -1)));
    PageStore::Options options;
    options.device_capacity = {MiB(8)};
    options.arena = {MiB(512)};
    options.host_capacity = MiB(64);
    options.host_step = MiB(4);
    options.page = MiB(2);
    options.guaranteed_part = kGuaranteedPart;
    options.links.resize(1);
    PageStore::Hooks hooks;
    hooks.attachment = [this](ClientId id) {
      Process& process = *processes_.at(id);
      return std::pair(process.attachment, &process.maps);
    };
    hooks.drop = [this](ClientId id, SlotId slot) {
      return processes_.at(id)->away.insert(slot).second;
    };
    hooks.publish = [this](ClientId id, SlotId slot, DeviceId, Bytes) {
      processes_.at(id)->away.erase(slot);
    };
    hooks.send_maps = [this](ClientId id) { processes_.at(id)->maps.Send(); };
    store_ = std::make_unique<PageStore>(options, devices_, memory_.get(), workers_.get(),
                                         &mailbox_, std::move(hooks));
    EXPECT_TRUE(store_->Open().ok());
    Attach(kClient, kTenant);
  }
  ~PageStoreTest() override {
    while (!processes_.empty()) Detach(processes_.begin()->first);
    workers_.reset();
  }

  void Attach(ClientId id, core::TenantId tenant, core::Budgets budgets = {MiB(8), MiB(64)}) {
    processes_[id] = std::make_unique<Process>(id, tenant);
    Apply(core::ClientAttached{id, tenant, budgets});
  }
  void Detach(ClientId id) {
    Apply(core::ClientGone{id});
    PumpUntil([&] { return store_->IsQuiet(id); });
    store_->Forget(id);
    processes_.erase(id);
  }
  void Apply(const core::Event& event) { store_->Apply(event, ipc::Now(), &plan_); }
  void Pump() {
    mailbox_.RunSome(mailbox_.size());
    for (const auto& [id, process] : processes_) {
      proto::MapInstruction next;
      while (process->mapper.Next(&next) == ipc::Take::kEntry) process->mapper.Acknowledge(0);
      std::vector<MapOrders::Ended> ended;
      EXPECT_TRUE(process->maps.Poll(&ended));
      store_->MapsEnded(id, ended);
    }
    store_->Poll(ipc::Now(), &plan_);
    store_->CheckInvariants();
    std::this_thread::yield();
  }
  void PumpUntil(const std::function<bool()>& done) {
    for (int i = 0; i < 1'000'000; ++i) {
      if (done()) return;
      Pump();
    }
    FAIL() << "it does not happen";
  }
  template <typename Reply>
  std::optional<Reply> Take(SlotId slot, ClientId client = kClient) {
    for (auto next = plan_.begin(); next != plan_.end(); ++next) {
      const Reply* reply = std::get_if<Reply>(&*next);
      if (reply == nullptr || reply->slot != slot || reply->client != client) continue;
      const Reply taken = *reply;
      plan_.erase(next);
      return taken;
    }
    return std::nullopt;
  }
  template <typename Reply>
  Reply Await(SlotId slot, ClientId client = kClient) {
    std::optional<Reply> reply;
    PumpUntil([&] { return (reply = Take<Reply>(slot, client)).has_value(); });
    return *reply;
  }
  void AskFor(SlotId slot, ClientId client = kClient, Bytes size = MiB(2), bool fail_fast = false,
              core::Tick deadline = core::kNever) {
    Apply(core::CreateRequested{.client = client,
                                .slot = slot,
                                .size = size,
                                .device = kDevice,
                                .name = {},
                                .deadline = deadline,
                                .fail_fast = fail_fast});
  }
  TensorId Create(SlotId slot, ClientId client = kClient) {
    AskFor(slot, client);
    return Await<core::AllocReply>(slot, client).tensor;
  }
  void Put(TensorId tensor, uint32_t writes, core::Priority priority = core::Priority::kNormal) {
    Apply(core::PutSeen{.tensor = tensor, .writes = writes, .next_use = {}, .priority = priority});
    Apply(core::StreamComplete{tensor});
  }
  // Tensors of a page each that no call uses, from slot `first` on.
  void Fill(ClientId client, uint32_t first, uint32_t count) {
    for (uint32_t slot = first; slot < first + count; ++slot) Put(Create(SlotId{slot}, client), 1);
  }
  // Slot 0, which has left for others.
  TensorId CreateAway() {
    const TensorId tensor = Create(SlotId{0});
    Put(tensor, 1);
    const auto& away = processes_.at(kClient)->away;
    for (uint32_t slot = 1; away.count(SlotId{0}) == 0; ++slot) Put(Create(SlotId{slot}), 1);
    return tensor;
  }
  void ExpectComesBack(TensorId tensor) {
    Apply(core::FetchRequested{tensor, kDevice, core::kNever});
    EXPECT_EQ(Await<core::FetchReply>(SlotId{0}).tensor, tensor);
    Put(tensor, 2);
    Apply(core::Freed{tensor});
    EXPECT_TRUE(Take<core::Release>(SlotId{0}).has_value());
    EXPECT_FALSE(store_->Knows(tensor));
  }
  Bytes HeldBy(ClientId client) const { return store_->View(client).device_held; }
  Bytes CopiesOf(ClientId client) const { return store_->View(client).host_used; }

  const device::Devices devices_ = device::OpenHostDevices({.total = MiB(64)});
  Mailbox mailbox_;
  std::unique_ptr<WorkerPool> workers_ = std::make_unique<WorkerPool>("test", 2);
  std::unique_ptr<AwayMemory> memory_;
  std::map<ClientId, std::unique_ptr<Process>> processes_;
  core::Plan plan_;
  std::unique_ptr<PageStore> store_;
};

TEST_F(PageStoreTest, ATensorLeavesAndComesBack) {
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
  const auto& away = processes_.at(kClient)->away;
  ASSERT_GE(away.size(), 1u);
  // They come back, and their copies stay.
  for (uint32_t slot = 0; slot < 5; ++slot) {
    if (away.count(SlotId{slot}) == 0) continue;
    Apply(core::FetchRequested{store_->Find(kClient, SlotId{slot}), kDevice, core::kNever});
    const TensorId tensor = Await<core::FetchReply>(SlotId{slot}).tensor;
    processes_.at(kClient)->away.erase(SlotId{slot});
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
  Fill(kClient, 0, 2);
  EXPECT_EQ(HeldBy(kClient), MiB(4));
  EXPECT_EQ(store_->Guaranteed(kDevice, kOther), MiB(4));
  EXPECT_EQ(store_->Guaranteed(kDevice, kTenant), Bytes{});
  Detach(kClient);
  Create(SlotId{2}, kSecond);
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
  EXPECT_TRUE(store_->StorePlanner::MayPin(kClient, MiB(4), MiB(4)).ok());
  Apply(core::PinnedHeld{kTenant, MiB(8)});
  Apply(core::PinnedUsed{kClient, MiB(8)});
  const core::Status refused = store_->StorePlanner::MayPin(kClient, MiB(4), MiB(4));
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
  const auto& away = processes_.at(kClient)->away;
  EXPECT_EQ(away.count(SlotId{0}), 1u);
  EXPECT_EQ(away.count(SlotId{1}), 0u);
  EXPECT_EQ(store_->Explain(low, ipc::Now()).priority, core::Priority::kLow);
}

TEST_F(PageStoreTest, AnExplanationHasTheNextNeedByThePlan) {
  for (int pass = 0; pass < 4; ++pass) {
    for (uint32_t slot = 0; slot < 6; ++slot) {
      const TensorId tensor = Create(SlotId{slot});
      if (pass == 3 && slot == 3) {
        const TensorId earlier = store_->Find(kClient, SlotId{1});
        const core::Explanation why = store_->Explain(earlier, ipc::Now());
        EXPECT_EQ(why.future, core::Explanation::Future::kLearned);
        EXPECT_GT(why.confidence, 0.5);
        EXPECT_GT(why.predictions_right, 0u);
      }
      Put(tensor, 1);
    }
    for (uint32_t slot = 6; slot-- > 0;) {
      const TensorId tensor = store_->Find(kClient, SlotId{slot});
      if (processes_.at(kClient)->away.count(SlotId{slot}) > 0) {
        Apply(core::FetchRequested{tensor, kDevice, core::kNever});
        Await<core::FetchReply>(SlotId{slot});
        processes_.at(kClient)->away.erase(SlotId{slot});
      } else {
        Apply(core::GetSeen{tensor});
      }
      Apply(core::Freed{tensor});
    }
  }
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
  put.next_use.kind = core::NextUse::Kind::kAt;
  put.next_use.at = core::Tick(std::chrono::seconds(100));
  Apply(put);
  Apply(core::StreamComplete{tensor});
  why = store_->Explain(tensor, ipc::Now() + std::chrono::seconds(5));
  EXPECT_EQ(why.future, Future::kHintedTime);
  EXPECT_GT(why.needed_in, std::chrono::seconds(90));
  EXPECT_LE(why.needed_in, std::chrono::seconds(95));
  EXPECT_EQ(why.last_put_ago, core::Duration{0});
  EXPECT_EQ(why.gets, 1u);
  put.next_use = {core::NextUse::Kind::kOrder, {}, 3};
  Apply(put);
  EXPECT_EQ(store_->Explain(tensor, ipc::Now()).future, Future::kHintedOrder);
}

}  // namespace
}  // namespace ravenstore::daemon
