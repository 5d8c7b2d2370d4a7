#include "daemon/device_moves.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "ipc/clock.h"
#include "tests/daemon/page_store_fixture.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::DeviceId;
using core::MiB;
using core::SlotId;
using core::TensorId;

constexpr DeviceId kOtherDevice{1};

// They are there before the store, and after.
struct DevicesOfATest {
  std::atomic<int> fail_copies{0};
  const device::Devices devices = device::OpenHostDevices(
      {.count = 2, .total = MiB(64), .fault = [this](device::HostStep step) {
         using Kind = device::HostStep::Kind;
         const bool copies = step.kind == Kind::kUp || step.kind == Kind::kToPeer;
         if (!copies || fail_copies == 0) return device::HostFault::kNone;
         return --fail_copies, device::HostFault::kBreaksOff;
       }});
};

class DeviceMovesTest : private DevicesOfATest, public PageStoreFixture {
 protected:
  DeviceMovesTest() : PageStoreFixture(DevicesOfATest::devices) {}
  ~DeviceMovesTest() override {
    Detach(kClient);
    EXPECT_EQ(store_->views().HostTier().used, Bytes{}) << "a copy is not freed";
  }

  void FailCopies(int count) { fail_copies = count; }
  void GetOnOther(TensorId tensor, core::Duration patience = std::chrono::hours(1)) {
    Apply(core::FetchRequested{tensor, kOtherDevice, ipc::Now() + patience});
  }
  void ExpectIsOnOther(TensorId tensor) {
    const core::FetchReply reply = Await<core::FetchReply>(SlotId{0});
    EXPECT_EQ(reply.device, kOtherDevice);
    EXPECT_FALSE(reply.recompute);
    EXPECT_EQ(store_->views().View(tensor).device, kOtherDevice);
    EXPECT_TRUE(store_->views().View(tensor).in_use);
    Put(tensor, 7);
  }
  // It is idle or away on its device; a get there has it.
  core::Error ExpectStays(TensorId tensor) {
    const core::FetchError failed = Await<core::FetchError>(SlotId{0});
    EXPECT_EQ(store_->views().View(tensor).device, kDevice);
    EXPECT_FALSE(store_->views().View(tensor).in_use);
    EXPECT_EQ(failed.stays.has_value(), AwayOf(kClient).count(SlotId{0}) == 0);
    Apply(core::FetchRequested{tensor, kDevice, core::kNever});
    EXPECT_EQ(Await<core::FetchReply>(SlotId{0}).device, kDevice);
    Put(tensor, 8);
    return failed.error;
  }
};

TEST_F(DeviceMovesTest, ATensorMovesToAnotherDeviceAndBack) {
  const TensorId tensor = Create(SlotId{0});
  Put(tensor, 1);
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
  EXPECT_EQ(store_->views().HostTier().used, Bytes{});
  ExpectComesBack(tensor);
}

TEST_F(DeviceMovesTest, AnAwayTensorMovesToAnotherDevice) {
  const TensorId tensor = CreateAway();
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
  // Its pages on the first device are for others.
  Put(CreateOn(kDevice, SlotId{50}, MiB(8)), 1);
}

TEST_F(DeviceMovesTest, AMoveWaitsUntilTheStreamHasReachedThePut) {
  const TensorId tensor = Create(SlotId{0});
  Apply(core::PutSeen{tensor, 1, {}});
  GetOnOther(tensor);
  for (int i = 0; i < 1000; ++i) Pump();
  EXPECT_FALSE(Take<core::FetchReply>(SlotId{0}).has_value());
  EXPECT_EQ(store_->views().View(tensor).device, kDevice);
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
  const TensorId held = CreateOn(kOtherDevice, SlotId{1}, MiB(8));
  GetOnOther(tensor, std::chrono::milliseconds(300));
  const core::Error error = ExpectStays(tensor);
  EXPECT_EQ(error.code, core::ErrorCode::kOutOfMemory);
  EXPECT_NE(error.message.find("device 1"), std::string::npos) << error.message;
  EXPECT_EQ(store_->views().HostTier().used, Bytes{});
  GetOnOther(tensor);
  for (int i = 0; i < 1000; ++i) Pump();
  Put(held, 1);
  ExpectIsOnOther(tensor);
}

TEST_F(DeviceMovesTest, AnAwayTensorMovesWhileItsDeviceIsFull) {
  const TensorId tensor = CreateAway();
  CreateOn(kDevice, SlotId{50}, MiB(8));
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
}

TEST_F(DeviceMovesTest, ATensorMovesOfWhichAPartIsAway) {
  const TensorId tensor = CreateOn(kDevice, SlotId{0}, MiB(8));
  Put(tensor, 1);
  CreateOn(kDevice, SlotId{1}, MiB(4));
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
  CreateOn(kDevice, SlotId{2}, MiB(4));
}

TEST_F(DeviceMovesTest, ACopyThatFailsOnceIsTriedAgain) {
  const TensorId tensor = CreateAway();
  FailCopies(1);
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
}

// While it waits for the other device it may leave its own.
TEST_F(DeviceMovesTest, AMovingTensorLeavesForOthers) {
  const TensorId tensor = Create(SlotId{0});
  Put(tensor, 1);
  const TensorId held = CreateOn(kOtherDevice, SlotId{1}, MiB(8));
  GetOnOther(tensor);
  CreateOn(kDevice, SlotId{2}, MiB(8));
  EXPECT_EQ(store_->views().View(tensor).residency, core::Residency::kAway);
  Put(held, 1);
  ExpectIsOnOther(tensor);
}

TEST_F(DeviceMovesTest, TensorsMoveInBothDirections) {
  const TensorId tensor = Create(SlotId{0});
  const TensorId other = CreateOn(kOtherDevice, SlotId{1}, MiB(8));
  Put(tensor, 1);
  Put(other, 1);
  Apply(core::FetchRequested{other, kDevice, core::kNever});
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
  EXPECT_EQ(Await<core::FetchReply>(SlotId{1}).device, kDevice);
}

TEST_F(DeviceMovesTest, AMoveNeedsNoRoomInTheHostPool) {
  Apply(core::ClientLimits{kClient, {MiB(8), MiB(1)}});
  const TensorId tensor = Create(SlotId{0});
  Put(tensor, 1);
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
}

TEST_F(DeviceMovesTest, AMoveWhoseCopiesFailLeavesTheTensorWhereItIs) {
  const TensorId tensor = Create(SlotId{0});
  Put(tensor, 1);
  FailCopies(2);  // the one to the other device, which is tried twice
  GetOnOther(tensor);
  EXPECT_EQ(ExpectStays(tensor).code, core::ErrorCode::kDevice);
  Apply(core::Freed{CreateOn(kDevice, SlotId{50}, MiB(8))});
  FailCopies(2);  // the one to the other device, and the one to its own
  GetOnOther(tensor);
  EXPECT_EQ(ExpectStays(tensor).code, core::ErrorCode::kDevice);
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
  // Nothing is left of moves that failed.
  Put(CreateOn(kDevice, SlotId{50}, MiB(8)), 1);
  Apply(core::Freed{tensor});
  CreateOn(kOtherDevice, SlotId{51}, MiB(8));
}

TEST_F(DeviceMovesTest, ADiscardedTensorIsRecomputedWhereItIsAskedFor) {
  for (const DeviceId device : {kDevice, kOtherDevice}) {
    const TensorId tensor = Create(SlotId{0});
    Apply(core::PutSeen{tensor, 1, {}, core::Duration(1)});
    Apply(core::StreamComplete{tensor});
    Apply(core::Freed{CreateOn(kDevice, SlotId{1}, MiB(8))});
    ASSERT_EQ(AwayOf(kClient).count(SlotId{0}), 1u);
    EXPECT_EQ(store_->views().stats().out, Bytes{});
    Apply(core::FetchRequested{tensor, device, core::kNever});
    const core::FetchReply reply = Await<core::FetchReply>(SlotId{0});
    EXPECT_TRUE(reply.recompute);
    EXPECT_EQ(reply.device, device);
    EXPECT_EQ(store_->views().View(tensor).residency, core::Residency::kOnDevice);
    Put(tensor, 2);
    Apply(core::Freed{tensor});
    AwayOf(kClient).clear();
  }
  EXPECT_EQ(store_->views().stats().discarded, 2u);
  EXPECT_EQ(store_->views().stats().recomputes, 2u);
}

TEST_F(DeviceMovesTest, ADiscardedTensorThatDoesNotMoveStaysDiscarded) {
  const TensorId tensor = Create(SlotId{0});
  Apply(core::PutSeen{tensor, 1, {}, core::Duration(1)});
  Apply(core::StreamComplete{tensor});
  Apply(core::Freed{CreateOn(kDevice, SlotId{1}, MiB(8))});
  const TensorId held = CreateOn(kOtherDevice, SlotId{2}, MiB(8));
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
  AwayOf(kClient).clear();
  EXPECT_TRUE(store_->KeepInPlace(kClient, SlotId{0}, Keeping::kBegins).ok());
  EXPECT_TRUE(store_->KeepInPlace(kClient, SlotId{0}, Keeping::kBegins).ok()) << "already so";
  Put(tensor, 1);  // as before: not modified
  GetOnOther(tensor);
  EXPECT_EQ(Await<core::FetchError>(SlotId{0}).error.code, core::ErrorCode::kWrongState);
  Apply(core::Freed{CreateOn(kDevice, SlotId{50}, MiB(6))});
  EXPECT_EQ(AwayOf(kClient).count(SlotId{0}), 0u);
  const Bytes out = store_->views().stats().out;
  EXPECT_TRUE(store_->KeepInPlace(kClient, SlotId{0}, Keeping::kEnds).ok());
  Apply(core::Freed{CreateOn(kDevice, SlotId{50}, MiB(8))});
  EXPECT_EQ(store_->views().stats().out, out + MiB(2)) << "its copy may be old";
  ExpectComesBack(tensor);
}

// After this number of passes of the loop.
class DeviceMovesEndTest : public DeviceMovesTest, public testing::WithParamInterface<int> {};

TEST_P(DeviceMovesEndTest, AClientMayGoInEachStepOfAMove) {
  const TensorId tensor = Create(SlotId{0});
  Put(tensor, 1);
  GetOnOther(tensor);
  for (int i = 0; i < GetParam(); ++i) Pump();
}

// Its page is leaving with another tensor's bytes.
TEST_P(DeviceMovesEndTest, AMoveMayBeginInEachStepOfItsPagesLeaving) {
  const TensorId tensor = CreateOn(kDevice, SlotId{0}, MiB(1));
  const TensorId neighbour = CreateOn(kDevice, SlotId{1}, MiB(1));
  for (const TensorId one : {tensor, neighbour}) Put(one, 1);
  AskFor(SlotId{2}, kClient, MiB(8));
  for (int i = 0; i < GetParam(); ++i) Pump();
  GetOnOther(tensor);
  ExpectIsOnOther(tensor);
  Put(Await<core::AllocReply>(SlotId{2}).tensor, 1);
  if (AwayOf(kClient).count(SlotId{1}) == 0) return;
  Apply(core::FetchRequested{neighbour, kDevice, core::kNever});
  EXPECT_EQ(Await<core::FetchReply>(SlotId{1}).device, kDevice);
}

INSTANTIATE_TEST_SUITE_P(Passes, DeviceMovesEndTest, testing::Range(0, 30));

}  // namespace
}  // namespace ravenstore::daemon
