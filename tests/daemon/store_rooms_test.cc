// A PageStore with memory of other nodes, which comes and goes. Its bytes are checked elsewhere
// (client_pages_test, pools_test): no client maps here.
#include "daemon/store_rooms.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/daemon/page_store_fixture.h"
#include "tests/device/fake_pieces.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::MiB;
using core::SlotId;
using core::TensorId;
using Way = device::FakePieces::Way;

constexpr core::PoolId kRemote{2};
constexpr Bytes kPiece = MiB(4);

// It is there before the store, and after.
struct RemoteMemoryOfATest {
  RemoteMemoryOfATest() {
    auto pieces = std::make_unique<device::FakePieces>(MiB(64), kPiece);
    lenders = pieces.get();
    remote = MemoryInPieces(devices, std::move(pieces));
  }
  // Nearer than the host.
  StorePools::Other Pool() const {
    StorePools::Other other;
    other.id = kRemote;
    other.pool = {.kind = core::PoolKind::kRemote,
                  .capacity = MiB(64),
                  .granularity = remote->granularity(),
                  .chunk = kPiece};
    other.memory = remote.get();
    other.links.resize(2, {.up_bytes_per_second = 200e9, .down_bytes_per_second = 200e9});
    return other;
  }

  device::Devices devices = device::OpenHostDevices({.count = 2, .total = MiB(64)});
  device::FakePieces* lenders = nullptr;
  std::unique_ptr<AwayMemory> remote;
};

class StoreRoomsTest : private RemoteMemoryOfATest, public PageStoreFixture {
 protected:
  StoreRoomsTest() : PageStoreFixture(RemoteMemoryOfATest::devices, {Pool()}, MiB(64)) {
    Apply(core::PoolLimit{kRemote, MiB(64)});
  }

  // Eight tensors, of which four fit on the device.
  void MakeEight() {
    for (uint32_t i = 0; i < 8; ++i) {
      tensors_.push_back(Create(SlotId{i}));
      Put(tensors_.back(), 1);
    }
    PumpUntil([this] { return !store_->IsCopying(); });
  }
  Bytes Used() const { return store_->views().OtherTier(kRemote).used; }
  std::optional<uint32_t> FirstIn(core::PoolId pool) const {
    for (uint32_t i = 0; i < tensors_.size(); ++i) {
      const core::TensorView view = store_->views().View(tensors_[i]);
      if (view.residency == core::Residency::kAway && view.away == pool) return i;
    }
    return std::nullopt;
  }
  void Fetch(uint32_t i) { Apply(core::FetchRequested{tensors_[i], kDevice, core::kNever}); }
  // Its copy is under way until the lenders are released.
  uint32_t FetchGrantedEarly() {
    MakeEight();
    grants_early_ = true;
    const uint32_t first = *FirstIn(kRemote);
    lenders().Hold(Way::kRead);
    Fetch(first);
    PumpUntil([this] { return !processes_.at(kClient)->granted_early.empty(); });
    for (int i = 0; i < 100; ++i) Pump();
    EXPECT_EQ(processes_.at(kClient)->granted_early.size(), 1u);
    return first;
  }
  void ExpectLost(uint32_t i) {
    const auto error = Await<core::FetchError>(SlotId{i}).error;
    EXPECT_EQ(error.code, core::ErrorCode::kLost);
    EXPECT_EQ(error.message, "remote 0 lost its bytes");
  }
  void ExpectFetched(uint32_t i) {
    Fetch(i);
    EXPECT_EQ(Await<core::FetchReply>(SlotId{i}).tensor, tensors_[i]);
    Put(tensors_[i], 1);
  }
  device::FakePieces& lenders() { return *RemoteMemoryOfATest::lenders; }

  std::vector<TensorId> tensors_;
};

TEST_F(StoreRoomsTest, CopiesGoToTheNearestPoolWithRoom) {
  MakeEight();
  EXPECT_GE(Used(), MiB(8));
  EXPECT_EQ(store_->views().HostTier().used, Bytes{});
  EXPECT_EQ(store_->views().OtherTier(kRemote).held.count() % kPiece.count(), 0u);
  EXPECT_EQ(store_->views().View(kClient).others_used, Used());
  for (uint32_t i = 0; i < 8; ++i) ExpectFetched(i);
}

TEST_F(StoreRoomsTest, NothingGoesWhereNoMemoryIsLent) {
  Apply(core::PoolLimit{kRemote, Bytes{}});
  MakeEight();
  EXPECT_EQ(Used(), Bytes{});
  EXPECT_GE(store_->views().HostTier().used, MiB(8));
}

TEST_F(StoreRoomsTest, ABudgetHoldsForAllCopiesOfAClient) {
  core::Budgets budgets{MiB(8), MiB(64)};
  budgets.others[kRemote] = MiB(4);
  Apply(core::ClientLimits{kClient, budgets});
  MakeEight();
  EXPECT_GT(Used(), Bytes{});
  EXPECT_LE(Used(), MiB(4));
  EXPECT_GT(store_->views().HostTier().used, Bytes{});
}

TEST_F(StoreRoomsTest, CopiesInARecalledPieceMoveToTheHost) {
  MakeEight();
  ASSERT_TRUE(FirstIn(kRemote).has_value());
  for (const Bytes piece : lenders().pieces()) Apply(core::ChunkRecalled{kRemote, piece});
  Apply(core::PoolLimit{kRemote, Bytes{}});
  PumpUntil([this] { return lenders().pieces().empty(); });
  EXPECT_EQ(Used(), Bytes{});
  EXPECT_FALSE(FirstIn(kRemote).has_value());
  EXPECT_TRUE(FirstIn(core::kHostPool).has_value());
  for (uint32_t i = 0; i < 8; ++i) ExpectFetched(i);
}

TEST_F(StoreRoomsTest, AMoveToTheHostThatFailsIsTriedAgain) {
  MakeEight();
  int fails = 3;
  lenders().SetFault([&fails](Way way, Bytes) {
    const bool fault = way == Way::kRead && fails-- > 0;
    return fault ? device::FakePieces::Fault::kFails : device::FakePieces::Fault::kNone;
  });
  Apply(core::PoolLimit{kRemote, Bytes{}});
  PumpUntil([&] { return lenders().pieces().empty(); });
  for (uint32_t i = 0; i < 8; ++i) ExpectFetched(i);
}

TEST_F(StoreRoomsTest, BytesInALostPieceAreLostAndNoOthers) {
  MakeEight();
  const uint32_t first = *FirstIn(kRemote);
  std::set<uint32_t> resident;
  for (uint32_t i = 0; i < 8; ++i) {
    if (store_->views().View(tensors_[i]).residency == core::Residency::kOnDevice)
      resident.insert(i);
  }
  for (const Bytes piece : lenders().pieces()) {
    EXPECT_TRUE(lenders().Lose(piece));
    Apply(core::ChunkLost{kRemote, piece});
  }
  EXPECT_LE(store_->views().View(kClient).device_used, MiB(8));
  Fetch(first);
  ExpectLost(first);
  for (const uint32_t i : resident) {
    Apply(core::GetSeen{tensors_[i]});
    Put(tensors_[i], 2);
  }
  Apply(core::Freed{tensors_[first]});
  EXPECT_TRUE(Take<core::Release>(SlotId{first}).has_value());
  tensors_[first] = Create(SlotId{first});
}

TEST_F(StoreRoomsTest, ATensorThatWaitsForAnotherDeviceIsLostWithItsCopy) {
  constexpr core::DeviceId kOtherDevice{1};
  MakeEight();
  const uint32_t first = *FirstIn(kRemote);
  const TensorId held = CreateOn(kOtherDevice, SlotId{20}, MiB(8));
  Apply(core::FetchRequested{tensors_[first], kOtherDevice, core::kNever});
  for (const Bytes piece : lenders().pieces()) {
    EXPECT_TRUE(lenders().Lose(piece));
    Apply(core::ChunkLost{kRemote, piece});
  }
  Apply(core::Freed{held});
  EXPECT_EQ(Await<core::FetchError>(SlotId{first}).error.code, core::ErrorCode::kLost);
  // Its pages on the other device are free again.
  CreateOn(kOtherDevice, SlotId{21}, MiB(8));
}

TEST_F(StoreRoomsTest, AGetOfBytesThatAreLostOnTheirWayFails) {
  MakeEight();
  const uint32_t first = *FirstIn(kRemote);
  lenders().Hold(Way::kRead);
  Fetch(first);
  PumpUntil([this] { return lenders().held() > 0; });
  for (const Bytes piece : lenders().pieces()) {
    EXPECT_TRUE(lenders().Lose(piece));
    Apply(core::ChunkLost{kRemote, piece});
  }
  lenders().Release();
  ExpectLost(first);
}

TEST_F(StoreRoomsTest, AGetGoesOnWhileItsBytesAreOnTheirWay) {
  const uint32_t first = FetchGrantedEarly();
  EXPECT_EQ(store_->views().View(tensors_[first]).residency, core::Residency::kOnDevice);
  EXPECT_EQ(store_->views().View(kClient).waiting, 0u);
  lenders().Release();
  PumpUntil([this] { return early_grants_ended_.size() == 1; });
  EXPECT_TRUE(early_grants_ended_[0].ok());
  Put(tensors_[first], 2);
  Apply(core::Freed{tensors_[first]});
  EXPECT_TRUE(Take<core::Release>(SlotId{first}).has_value());
}

TEST_F(StoreRoomsTest, AGetThatWaitsForItsBytesIsNotGrantedEarly) {
  MakeEight();
  grants_early_ = true;
  const uint32_t first = *FirstIn(kRemote);
  Apply(core::FetchRequested{
      .tensor = tensors_[first], .device = kDevice, .deadline = core::kNever, .awaits = true});
  EXPECT_EQ(Await<core::FetchReply>(SlotId{first}).tensor, tensors_[first]);
  EXPECT_TRUE(early_grants_ended_.empty());
}

// Tickets are the client's memory: it may write any value there.
TEST_F(StoreRoomsTest, UsesGrantedEarlyDoNotEndBeforeTheBytesAreThere) {
  const uint32_t first = FetchGrantedEarly();
  Put(tensors_[first], 2);
  Apply(core::GetSeen{tensors_[first]});
  Put(tensors_[first], 3);
  EXPECT_TRUE(store_->KeepInPlace(kClient, SlotId{first}, Keeping::kBegins).ok() ==
              store_->views().View(tensors_[first]).in_use);
  Apply(core::Freed{tensors_[first]});
  for (int i = 0; i < 100; ++i) Pump();
  EXPECT_FALSE(Take<core::Release>(SlotId{first}).has_value());
  EXPECT_TRUE(store_->views().Knows(tensors_[first]));
  lenders().Release();
  Await<core::Release>(SlotId{first});
  EXPECT_FALSE(store_->views().Knows(tensors_[first]));
}

TEST_F(StoreRoomsTest, LostBytesOfAnEarlyGrantAreReported) {
  const uint32_t first = FetchGrantedEarly();
  EXPECT_TRUE(store_->KeepInPlace(kClient, SlotId{first}, Keeping::kBegins).ok());
  for (const Bytes piece : lenders().pieces()) {
    EXPECT_TRUE(lenders().Lose(piece));
    Apply(core::ChunkLost{kRemote, piece});
  }
  lenders().Release();
  PumpUntil([this] { return early_grants_ended_.size() == 1; });
  EXPECT_EQ(early_grants_ended_[0].error().code, core::ErrorCode::kLost);
  EXPECT_EQ(early_grants_ended_[0].error().message, "remote 0 lost its bytes");
  Put(tensors_[first], 2);
  Fetch(first);
  ExpectLost(first);
  Apply(core::Freed{tensors_[first]});
  Await<core::Release>(SlotId{first});
  PumpUntil([this] { return !store_->IsCopying(); });
}

TEST_F(StoreRoomsTest, AnErrorNamesThePoolThatLostBytesOfAnEarlyGrant) {
  const uint32_t first = FetchGrantedEarly();
  for (const Bytes piece : lenders().pieces()) EXPECT_TRUE(lenders().Lose(piece));
  lenders().Release();
  PumpUntil([this] { return early_grants_ended_.size() == 1; });
  EXPECT_EQ(early_grants_ended_[0].error().message, "a copy of its bytes failed");
  Fetch(first);
  ExpectLost(first);
}

TEST_F(StoreRoomsTest, ATensorGrantedEarlyMayBeFreedBeforeItsBytesAreThere) {
  const uint32_t first = FetchGrantedEarly();
  Apply(core::FreeSeen{tensors_[first], core::StreamId{1}});
  lenders().Release();
  PumpUntil([this] { return early_grants_ended_.size() == 1; });
  EXPECT_FALSE(Take<core::Release>(SlotId{first}).has_value());
  Apply(core::Freed{tensors_[first]});
  EXPECT_TRUE(Take<core::Release>(SlotId{first}).has_value());
}

TEST_F(StoreRoomsTest, ATensorGrantedEarlyMayBeFreedBeforeItsBytesAreLost) {
  const uint32_t first = FetchGrantedEarly();
  Apply(core::FreeSeen{tensors_[first], core::StreamId{1}});
  for (const Bytes piece : lenders().pieces()) EXPECT_TRUE(lenders().Lose(piece));
  lenders().Release();
  PumpUntil([this] { return early_grants_ended_.size() == 1; });
  EXPECT_FALSE(early_grants_ended_[0].ok());
  Apply(core::Freed{tensors_[first]});
  EXPECT_TRUE(Take<core::Release>(SlotId{first}).has_value());
  store_->views().CheckInvariants();
}

TEST_F(StoreRoomsTest, AClientMayLeaveWhileItHasAnEarlyGrant) {
  FetchGrantedEarly();
  Apply(core::ClientRemoved{kClient});
  Pump();
  lenders().Release();
  AwaitEnd(kClient);
  EXPECT_TRUE(early_grants_ended_.empty());
}

TEST_F(StoreRoomsTest, APoolThatFailsTakesNoCopyAnyMore) {
  MakeEight();
  const uint32_t first = *FirstIn(kRemote);
  Apply(core::PoolFailed{kRemote});
  EXPECT_EQ(store_->views().OtherTier(kRemote).capacity, Bytes{});
  Fetch(first);
  ExpectLost(first);
  for (uint32_t i = 8; i < 14; ++i) Put(Create(SlotId{i}), 1);
  EXPECT_GT(store_->views().HostTier().used, Bytes{});
}

TEST_F(StoreRoomsTest, AClientMayGoWhileItsCopiesMoveOn) {
  MakeEight();
  lenders().Hold(Way::kRead);
  Apply(core::PoolLimit{kRemote, Bytes{}});
  PumpUntil([this] { return lenders().held() > 0; });
  Apply(core::ClientRemoved{kClient});
  Pump();
  lenders().Release();
  AwaitEnd(kClient);
  PumpUntil([this] { return lenders().pieces().empty(); });
  EXPECT_EQ(store_->views().HostTier().used, Bytes{});
}

}  // namespace
}  // namespace ravenstore::daemon
