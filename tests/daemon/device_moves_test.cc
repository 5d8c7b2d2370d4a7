// PageStore alone: a test says what a client did, and its mapper acknowledges without mapping.
#include "daemon/device_moves.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "daemon/away_memory.h"
#include "daemon/page_store.h"
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
constexpr DeviceId kDevice{0};
constexpr DeviceId kOther{1};

class DeviceMovesTest : public testing::Test {
 protected:
  DeviceMovesTest() {
    attachment_ =
        std::make_shared<Attachment>(Attachment{kClient,
                                                core::TenantId{1},
                                                {},
                                                0,
                                                0,
                                                "a test",
                                                std::move(*ipc::ControlSegment::Create(1)),
                                                std::move(*ipc::Doorbell::Create()),
                                                {}});
    attachment_->arenas.resize(devices_.size());
    maps_ = std::make_unique<MapOrders>(&attachment_->segment->maps);
    mapper_ = std::make_unique<ipc::MapConsumer>(&attachment_->segment->maps);
    memory_ = HostMemory(devices_, std::move(*devices_[0]->ReservePoolVaRange(MiB(64), -1)));
    PageStore::Options options;
    options.device_capacity = {MiB(8), MiB(8)};
    options.arena = {MiB(512), MiB(512)};
    options.host_capacity = MiB(64);
    options.host_step = MiB(4);
    options.page = MiB(2);
    options.links.resize(2);
    PageStore::Hooks hooks;
    hooks.attachment = [this](ClientId) { return std::pair(attachment_, maps_.get()); };
    hooks.drop = [this](ClientId, SlotId slot) { return away_.insert(slot).second; };
    hooks.publish = [this](ClientId, SlotId slot, DeviceId, Bytes) { away_.erase(slot); };
    hooks.send_maps = [this](ClientId) { maps_->Send(); };
    store_ = std::make_unique<PageStore>(options, devices_, memory_.get(), workers_.get(),
                                         &mailbox_, std::move(hooks));
    EXPECT_TRUE(store_->Open().ok());
    Apply(core::ClientAttached{kClient, core::TenantId{1}, {MiB(8), MiB(64)}});
  }
  ~DeviceMovesTest() override {
    Apply(core::ClientGone{kClient});
    PumpUntil([this] { return store_->IsQuiet(kClient); });
    store_->Forget(kClient);
    EXPECT_EQ(store_->HostTier().used, Bytes{}) << "a copy is not freed";
    workers_.reset();
  }

  void Apply(const core::Event& event) { store_->Apply(event, ipc::Now(), &plan_); }
  void Pump() {
    mailbox_.RunSome(mailbox_.size());
    proto::MapInstruction next;
    while (mapper_->Next(&next) == ipc::Take::kEntry) mapper_->Acknowledge(0);
    std::vector<MapOrders::Ended> ended;
    EXPECT_TRUE(maps_->Poll(&ended));
    store_->MapsEnded(kClient, ended);
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
  std::optional<Reply> Take(SlotId slot) {
    for (auto next = plan_.begin(); next != plan_.end(); ++next) {
      const Reply* reply = std::get_if<Reply>(&*next);
      if (reply == nullptr || reply->slot != slot) continue;
      const Reply taken = *reply;
      plan_.erase(next);
      return taken;
    }
    return std::nullopt;
  }
  template <typename Reply>
  Reply Await(SlotId slot) {
    std::optional<Reply> reply;
    PumpUntil([&] { return (reply = Take<Reply>(slot)).has_value(); });
    return *reply;
  }
  TensorId Create(SlotId slot, DeviceId device = kDevice, Bytes size = MiB(2)) {
    Apply(core::CreateRequested{.client = kClient,
                                .slot = slot,
                                .size = size,
                                .device = device,
                                .name = {},
                                .deadline = core::kNever,
                                .fail_fast = false});
    return Await<core::AllocReply>(slot).tensor;
  }
  void Put(TensorId tensor, uint32_t writes) {
    Apply(core::PutSeen{tensor, writes, {}});
    Apply(core::StreamComplete{tensor});
  }
  // Slot 0, which has left for others.
  TensorId CreateAway() {
    const TensorId tensor = Create(SlotId{0});
    Put(tensor, 1);
    for (uint32_t slot = 1; away_.count(SlotId{0}) == 0; ++slot) Put(Create(SlotId{slot}), 1);
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

  void GetOnOther(TensorId tensor, core::Duration patience = std::chrono::hours(1)) {
    Apply(core::FetchRequested{tensor, kOther, ipc::Now() + patience});
  }
  void ExpectIsOnOther(TensorId tensor) {
    const core::FetchReply reply = Await<core::FetchReply>(SlotId{0});
    EXPECT_EQ(reply.device, kOther);
    EXPECT_FALSE(reply.recompute);
    EXPECT_EQ(store_->View(tensor).device, kOther);
    EXPECT_TRUE(store_->View(tensor).in_use);
    Put(tensor, 7);
  }
  // It is idle or away on its device; a get there has it.
  core::Error ExpectStays(TensorId tensor) {
    const core::FetchError failed = Await<core::FetchError>(SlotId{0});
    EXPECT_EQ(store_->View(tensor).device, kDevice);
    EXPECT_FALSE(store_->View(tensor).in_use);
    EXPECT_EQ(failed.stays.has_value(), away_.count(SlotId{0}) == 0);
    Apply(core::FetchRequested{tensor, kDevice, core::kNever});
    EXPECT_EQ(Await<core::FetchReply>(SlotId{0}).device, kDevice);
    Put(tensor, 8);
    return failed.error;
  }

  std::atomic<int> fail_copies_{0};
  const device::Devices devices_ = device::OpenHostDevices(
      {.count = 2, .total = MiB(64), .fault = [this](device::HostStep step) {
         using Kind = device::HostStep::Kind;
         const bool copies = step.kind == Kind::kUp || step.kind == Kind::kDown;
         if (!copies || fail_copies_ == 0) return device::HostFault::kNone;
         return --fail_copies_, device::HostFault::kBreaksOff;
       }});
  std::shared_ptr<Attachment> attachment_;
  Mailbox mailbox_;
  std::unique_ptr<WorkerPool> workers_ = std::make_unique<WorkerPool>("test", 2);
  std::unique_ptr<AwayMemory> memory_;
  std::unique_ptr<MapOrders> maps_;
  std::unique_ptr<ipc::MapConsumer> mapper_;
  std::set<SlotId> away_;
  core::Plan plan_;
  std::unique_ptr<PageStore> store_;
};

TEST_F(DeviceMovesTest, ATensorMovesToAnotherDeviceAndBack) {
  const TensorId tensor = Create(SlotId{0});
  Put(tensor, 1);
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
  EXPECT_EQ(store_->HostTier().used, Bytes{});
  ExpectComesBack(tensor);
}

TEST_F(DeviceMovesTest, AnAwayTensorMovesToAnotherDevice) {
  const TensorId tensor = CreateAway();
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
  // Its pages on the first device are for others.
  Put(Create(SlotId{50}, kDevice, MiB(8)), 1);
}

TEST_F(DeviceMovesTest, AMoveWaitsUntilTheStreamHasReachedThePut) {
  const TensorId tensor = Create(SlotId{0});
  Apply(core::PutSeen{tensor, 1, {}});
  GetOnOther(tensor);
  for (int i = 0; i < 1000; ++i) Pump();
  EXPECT_FALSE(Take<core::FetchReply>(SlotId{0}).has_value());
  EXPECT_EQ(store_->View(tensor).device, kDevice);
  Apply(core::StreamComplete{tensor});
  ExpectIsOnOther(tensor);
}

TEST_F(DeviceMovesTest, AMoveThatWaitsForAPutTooLongFails) {
  const TensorId tensor = Create(SlotId{0});
  Apply(core::PutSeen{tensor, 1, {}});
  GetOnOther(tensor, std::chrono::milliseconds(10));
  const core::FetchError failed = Await<core::FetchError>(SlotId{0});
  EXPECT_TRUE(failed.stays.has_value());
  Apply(core::StreamComplete{tensor});
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
}

TEST_F(DeviceMovesTest, AMoveThatFindsNoRoomOnTheOtherDeviceFails) {
  const TensorId tensor = Create(SlotId{0});
  Put(tensor, 1);
  const TensorId held = Create(SlotId{1}, kOther, MiB(8));
  GetOnOther(tensor, std::chrono::milliseconds(10));
  const core::Error error = ExpectStays(tensor);
  EXPECT_EQ(error.code, core::ErrorCode::kOutOfMemory);
  EXPECT_NE(error.message.find("device 1"), std::string::npos) << error.message;
  EXPECT_EQ(store_->HostTier().used, Bytes{});
  GetOnOther(tensor);
  for (int i = 0; i < 1000; ++i) Pump();
  Put(held, 1);
  ExpectIsOnOther(tensor);
}

TEST_F(DeviceMovesTest, AMoveThatFindsNoRoomOnItsDeviceFails) {
  const TensorId tensor = CreateAway();
  const TensorId held = Create(SlotId{50}, kDevice, MiB(8));
  GetOnOther(tensor, std::chrono::milliseconds(10));
  EXPECT_EQ(Await<core::FetchError>(SlotId{0}).error.code, core::ErrorCode::kOutOfMemory);
  Put(held, 1);
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
}

// While it waits for the other device it may leave its own.
TEST_F(DeviceMovesTest, AMovingTensorLeavesForOthers) {
  const TensorId tensor = Create(SlotId{0});
  Put(tensor, 1);
  const TensorId held = Create(SlotId{1}, kOther, MiB(8));
  GetOnOther(tensor);
  PumpUntil([&] { return !store_->View(tensor).in_use && store_->HostTier().used > Bytes{}; });
  Create(SlotId{2}, kDevice, MiB(8));
  EXPECT_EQ(store_->View(tensor).residency, core::Residency::kAway);
  Put(held, 1);
  ExpectIsOnOther(tensor);
}

TEST_F(DeviceMovesTest, AMoveFailsWithoutRoomInTheHostPool) {
  Apply(core::ClientLimits{kClient, {MiB(8), MiB(1)}});
  const TensorId large = Create(SlotId{1}, kOther, MiB(2));
  Put(large, 1);
  Apply(core::FetchRequested{large, kDevice, core::kNever});
  const core::FetchError failed = Await<core::FetchError>(SlotId{1});
  EXPECT_EQ(failed.error.code, core::ErrorCode::kOutOfMemory);
  EXPECT_NE(failed.error.message.find("host pool"), std::string::npos) << failed.error.message;
  EXPECT_TRUE(failed.stays.has_value());
  EXPECT_EQ(store_->View(large).device, kOther);
}

TEST_F(DeviceMovesTest, AMoveWhoseCopiesFailLeavesTheTensorWhereItIs) {
  const TensorId tensor = Create(SlotId{0});
  Put(tensor, 1);
  fail_copies_ = 1;  // the one out
  GetOnOther(tensor);
  EXPECT_EQ(ExpectStays(tensor).code, core::ErrorCode::kDevice);
  const TensorId held = Create(SlotId{1}, kOther, MiB(8));
  GetOnOther(tensor);
  PumpUntil([&] { return !store_->View(tensor).in_use && store_->HostTier().used > Bytes{}; });
  for (int i = 0; i < 1000; ++i) Pump();
  fail_copies_ = 1;  // the one in
  Apply(core::Freed{held});
  EXPECT_EQ(ExpectStays(tensor).code, core::ErrorCode::kDevice);
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
}

TEST_F(DeviceMovesTest, ADiscardedTensorIsRecomputedWhereItIsAskedFor) {
  for (const DeviceId device : {kDevice, kOther}) {
    const TensorId tensor = Create(SlotId{0});
    Apply(core::PutSeen{tensor, 1, {}, core::Duration(1)});
    Apply(core::StreamComplete{tensor});
    Apply(core::Freed{Create(SlotId{1}, kDevice, MiB(8))});
    ASSERT_EQ(away_.count(SlotId{0}), 1u);
    EXPECT_EQ(store_->stats().out, Bytes{});
    Apply(core::FetchRequested{tensor, device, core::kNever});
    const core::FetchReply reply = Await<core::FetchReply>(SlotId{0});
    EXPECT_TRUE(reply.recompute);
    EXPECT_EQ(reply.device, device);
    EXPECT_EQ(store_->View(tensor).residency, core::Residency::kOnDevice);
    Put(tensor, 2);
    Apply(core::Freed{tensor});
    away_.clear();
  }
  EXPECT_EQ(store_->stats().discarded, 2u);
  EXPECT_EQ(store_->stats().recomputes, 2u);
}

TEST_F(DeviceMovesTest, ADiscardedTensorThatDoesNotMoveStaysDiscarded) {
  const TensorId tensor = Create(SlotId{0});
  Apply(core::PutSeen{tensor, 1, {}, core::Duration(1)});
  Apply(core::StreamComplete{tensor});
  Apply(core::Freed{Create(SlotId{1}, kDevice, MiB(8))});
  const TensorId held = Create(SlotId{2}, kOther, MiB(8));
  GetOnOther(tensor, std::chrono::milliseconds(10));
  EXPECT_FALSE(Await<core::FetchError>(SlotId{0}).stays.has_value());
  Apply(core::Freed{held});
  Apply(core::FetchRequested{tensor, kDevice, core::kNever});
  EXPECT_TRUE(Await<core::FetchReply>(SlotId{0}).recompute);
}

TEST_F(DeviceMovesTest, ATensorThatIsKeptInPlaceIsWrittenToWithoutAGet) {
  const TensorId tensor = CreateAway();
  EXPECT_FALSE(store_->KeepInPlace(kClient, SlotId{0}, Keeping::kBegins).ok()) << "not in use";
  Apply(core::FetchRequested{tensor, kDevice, core::kNever});
  Await<core::FetchReply>(SlotId{0});
  away_.clear();
  EXPECT_TRUE(store_->KeepInPlace(kClient, SlotId{0}, Keeping::kBegins).ok());
  EXPECT_TRUE(store_->KeepInPlace(kClient, SlotId{0}, Keeping::kBegins).ok()) << "already so";
  Put(tensor, 1);  // as before: not modified
  GetOnOther(tensor);
  EXPECT_EQ(Await<core::FetchError>(SlotId{0}).error.code, core::ErrorCode::kWrongState);
  Apply(core::Freed{Create(SlotId{50}, kDevice, MiB(6))});
  EXPECT_EQ(away_.count(SlotId{0}), 0u);
  const Bytes out = store_->stats().out;
  EXPECT_TRUE(store_->KeepInPlace(kClient, SlotId{0}, Keeping::kEnds).ok());
  Apply(core::Freed{Create(SlotId{50}, kDevice, MiB(8))});
  EXPECT_EQ(store_->stats().out, out + MiB(2)) << "its copy may be old";
  ExpectComesBack(tensor);
}

// After this number of passes of the loop.
class DeviceMovesGoneTest : public DeviceMovesTest, public testing::WithParamInterface<int> {};

TEST_P(DeviceMovesGoneTest, AClientMayGoInEachStepOfAMove) {
  const TensorId tensor = Create(SlotId{0});
  Put(tensor, 1);
  GetOnOther(tensor);
  for (int i = 0; i < GetParam(); ++i) Pump();
}

INSTANTIATE_TEST_SUITE_P(Passes, DeviceMovesGoneTest, testing::Range(0, 30));

}  // namespace
}  // namespace ravenstore::daemon
