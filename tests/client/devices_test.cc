#include "client/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "ipc/clock.h"
#include "ipc/segment.h"

namespace ravenstore::client {
namespace {

using core::Bytes;
using core::ErrorCode;
using core::MiB;
using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

// The daemon's side is an arena of another device object in the same process.
class DevicesTest : public testing::Test {
 protected:
  DevicesTest()
      : segment_(*ipc::ControlSegment::Create(1)),
        devices_(device::OpenHostDevices({.count = 3})),
        daemon_(*devices_[0]->ReserveVaRange(MiB(64))),
        client_(devices_[0], 0, 0, MiB(64), segment_.get()) {}

  ipc::UniqueFd Slab(uint64_t offset, uint64_t bytes) {
    EXPECT_TRUE(daemon_->Create(Bytes(offset), Bytes(bytes)).ok());
    return *daemon_->Export(Bytes(offset));
  }
  core::Tick Soon() { return ipc::Now() + milliseconds(2); }
  core::Tick Patiently() { return ipc::Now() + std::chrono::seconds(10); }

  ipc::ControlSegment segment_;
  device::Devices devices_;
  std::unique_ptr<device::VaRange> daemon_;
  ClientDevice client_;
  PhaseWord phase_{Phase::kAttached};
};

TEST_F(DevicesTest, NothingIsReservedBeforeItIsNeeded) {
  EXPECT_EQ(client_.base(), nullptr);
  ASSERT_TRUE(client_.Prepare().ok());
  EXPECT_NE(client_.base(), nullptr);
  EXPECT_TRUE(client_.Prepare().ok());
}

TEST_F(DevicesTest, OfferedSlabIsMappedByWhoNeedsIt) {
  ASSERT_TRUE(client_.Offer(0, 8 * kMiB, Slab(0, 8 * kMiB)).ok());
  EXPECT_FALSE(client_.Mapped(0, 1));
  ASSERT_TRUE(client_.EnsureMapped(4096, 4096, Soon(), phase_).ok());
  EXPECT_TRUE(client_.Mapped(0, 8 * kMiB));
  EXPECT_FALSE(client_.Mapped(0, 8 * kMiB + 1));
  daemon_->base()[4096] = std::byte{42};
  EXPECT_EQ(client_.base()[4096], std::byte{42});
}

TEST_F(DevicesTest, WithTheArenaThereASlabIsMappedAheadOfNeed) {
  ASSERT_TRUE(client_.Prepare().ok());
  ASSERT_TRUE(client_.Offer(0, 8 * kMiB, Slab(0, 8 * kMiB)).ok());
  EXPECT_FALSE(client_.Mapped(0, 1));
  client_.MapAhead(0);
  EXPECT_TRUE(client_.Mapped(0, 8 * kMiB));
  EXPECT_TRUE(client_.EnsureMapped(4096, 4096, Soon(), phase_).ok());
  EXPECT_TRUE(client_.Release(0).ok());
  EXPECT_FALSE(client_.Mapped(0, 1));
}

TEST_F(DevicesTest, WhoIsPlacedInASlabThatCannotBeMappedIsToldWhy) {
  ASSERT_TRUE(client_.Prepare().ok());
  ASSERT_TRUE(client_.Offer(0, 4 * kMiB, Slab(0, 2 * kMiB)).ok());
  for (int i = 0; i < 2; ++i) {
    const auto mapped = client_.EnsureMapped(0, 1, Soon(), phase_);
    ASSERT_FALSE(mapped.ok());
    EXPECT_EQ(mapped.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(mapped.error().message, HasSubstr("4194304 bytes"));
  }
  EXPECT_TRUE(client_.Release(0).ok());
}

TEST_F(DevicesTest, WhoWaitsForADescriptorInVainIsToldWhatWasMissed) {
  const auto words = [&] { return client_.EnsureMapped(0, 1, Soon(), phase_).error().message; };
  EXPECT_THAT(words(), HasSubstr("it did not send"));
  client_.NoteMissedPacket({ErrorCode::kCorrupt, "no room for descriptors"});
  EXPECT_THAT(words(), HasSubstr("did not arrive: no room for descriptors"));
}

TEST_F(DevicesTest, ExtentAcrossSlabsNeedsAllOfThem) {
  ASSERT_TRUE(client_.Offer(8 * kMiB, 8 * kMiB, Slab(8 * kMiB, 8 * kMiB)).ok());
  const auto early = client_.EnsureMapped(6 * kMiB, 4 * kMiB, Soon(), phase_);
  ASSERT_FALSE(early.ok());
  EXPECT_EQ(early.error().code, ErrorCode::kTimedOut);
  std::thread watcher([&] { EXPECT_TRUE(client_.Offer(0, 8 * kMiB, Slab(0, 8 * kMiB)).ok()); });
  EXPECT_TRUE(client_.EnsureMapped(6 * kMiB, 4 * kMiB, Patiently(), phase_).ok());
  watcher.join();
  EXPECT_TRUE(client_.Mapped(6 * kMiB, 4 * kMiB));
}

TEST_F(DevicesTest, ReleasedSlabIsUnmappedAndMayComeAgain) {
  ASSERT_TRUE(client_.Offer(2 * kMiB, 4 * kMiB, Slab(2 * kMiB, 4 * kMiB)).ok());
  ASSERT_TRUE(client_.EnsureMapped(2 * kMiB, 1, Soon(), phase_).ok());
  EXPECT_TRUE(client_.Release(2 * kMiB).ok());
  EXPECT_FALSE(client_.Mapped(2 * kMiB, 1));
  EXPECT_EQ(client_.Release(2 * kMiB).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(daemon_->Unmap(Bytes(2 * kMiB)).ok());
  ASSERT_TRUE(client_.Offer(2 * kMiB, 4 * kMiB, Slab(2 * kMiB, 4 * kMiB)).ok());
  EXPECT_TRUE(client_.EnsureMapped(2 * kMiB, 1, Soon(), phase_).ok());
}

TEST_F(DevicesTest, SlabNobodyMappedIsForgottenWhenReleased) {
  ASSERT_TRUE(client_.Offer(0, 2 * kMiB, Slab(0, 2 * kMiB)).ok());
  EXPECT_TRUE(client_.Release(0).ok());
  EXPECT_FALSE(client_.EnsureMapped(0, 1, Soon(), phase_).ok());
}

TEST_F(DevicesTest, OffersThatMakeNoSenseAreRefused) {
  const auto code = [&](uint64_t offset, uint64_t bytes) {
    return client_.Offer(offset, bytes, ipc::UniqueFd()).error().code;
  };
  EXPECT_EQ(code(1, 2 * kMiB), ErrorCode::kCorrupt) << "misaligned";
  EXPECT_EQ(code(0, kMiB), ErrorCode::kCorrupt) << "less than a granule";
  EXPECT_EQ(code(0, 0), ErrorCode::kCorrupt);
  EXPECT_EQ(code(62 * kMiB, 4 * kMiB), ErrorCode::kCorrupt) << "beyond the arena";
  EXPECT_EQ(code(~uint64_t{0} - 2 * kMiB + 1, 2 * kMiB), ErrorCode::kCorrupt);
  ASSERT_TRUE(client_.Offer(0, 2 * kMiB, Slab(0, 2 * kMiB)).ok());
  EXPECT_EQ(code(0, 2 * kMiB), ErrorCode::kCorrupt) << "twice";
}

TEST_F(DevicesTest, PlacesOutsideTheArenaAreRefused) {
  EXPECT_EQ(client_.EnsureMapped(63 * kMiB, 2 * kMiB, Soon(), phase_).error().code,
            ErrorCode::kCorrupt);
  EXPECT_EQ(client_.EnsureMapped(~uint64_t{0} - 511, 1024, Soon(), phase_).error().code,
            ErrorCode::kCorrupt);
  EXPECT_FALSE(client_.Mapped(~uint64_t{0} - 511, 1024));
}

TEST_F(DevicesTest, WaitForASlabEndsWithTheSession) {
  std::thread watcher([&] {
    phase_.store(Phase::kLost);
    client_.WakeWaiters();
  });
  EXPECT_EQ(client_.EnsureMapped(0, 1, Patiently(), phase_).error().code, ErrorCode::kLost);
  watcher.join();
}

TEST_F(DevicesTest, WhileTheDriverHoldsUpAnUnmapOtherSlabsAreMappedAndWaitsEnd) {
  std::promise<void> held;
  std::promise<void> go_on;
  std::atomic<bool> hold{false};
  const auto devices = device::OpenHostDevices(
      {.fault = [&hold, &held, goes_on = go_on.get_future().share()](device::HostStep step) {
        if (step.kind == device::HostStep::Kind::kUnmap && hold.exchange(false)) {
          held.set_value();
          goes_on.wait();
        }
        return device::HostFault::kNone;
      }});
  ClientDevice client(devices[0], 0, 0, MiB(64), segment_.get());
  ASSERT_TRUE(client.Offer(0, 2 * kMiB, Slab(0, 2 * kMiB)).ok());
  ASSERT_TRUE(client.EnsureMapped(0, 1, Soon(), phase_).ok());
  hold = true;
  std::thread mapper([&client] { EXPECT_TRUE(client.Release(0).ok()); });
  held.get_future().wait();
  EXPECT_FALSE(client.Mapped(0, 1));
  ASSERT_TRUE(client.Offer(8 * kMiB, 2 * kMiB, Slab(8 * kMiB, 2 * kMiB)).ok());
  EXPECT_TRUE(client.EnsureMapped(8 * kMiB, 1, Patiently(), phase_).ok());
  EXPECT_EQ(client.EnsureMapped(0, 1, Soon(), phase_).error().code, ErrorCode::kTimedOut);
  client.WakeWaiters();
  client.LockForFork();
  client.UnlockAfterFork();
  go_on.set_value();
  mapper.join();
  EXPECT_EQ(client.Release(0).error().code, ErrorCode::kNotFound);
}

TEST_F(DevicesTest, DevicesArePairedByUuidWhateverTheirOrder) {
  const device::Devices visible = {devices_[2], devices_[0]};  // as CUDA_VISIBLE_DEVICES=2,0
  auto set = DeviceSet::Match({{"HOST-0", MiB(8)}, {"HOST-1", MiB(8)}, {"HOST-2", MiB(8)}}, visible,
                              segment_.get());
  ASSERT_TRUE(set.ok());
  EXPECT_EQ((*set->Local(0))->daemon_ordinal(), 2u);
  EXPECT_EQ((*set->Local(1))->daemon_ordinal(), 0u);
  EXPECT_EQ(set->OfDaemon(1), nullptr) << "not visible here";
  EXPECT_EQ(set->OfDaemon(2)->local_ordinal(), 0);
  EXPECT_EQ(set->OfDaemon(9), nullptr);
}

TEST_F(DevicesTest, DeviceTheDaemonDoesNotHaveIsNamed) {
  auto set = DeviceSet::Match({{"HOST-1", MiB(8)}}, devices_, segment_.get());
  ASSERT_TRUE(set.ok());
  const auto missing = set->Local(0);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("HOST-0"));
  EXPECT_THAT(set->Local(7).error().message, HasSubstr("sees 3 device(s)"));
}

TEST_F(DevicesTest, NoCommonDeviceIsAnErrorThatSaysWhereToLook) {
  const auto set = DeviceSet::Match({{"GPU-abc", MiB(8)}}, devices_, segment_.get());
  ASSERT_FALSE(set.ok());
  EXPECT_EQ(set.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(set.error().message, HasSubstr("GPU-abc"));
  EXPECT_THAT(set.error().message, HasSubstr("CUDA_VISIBLE_DEVICES"));
}

}  // namespace
}  // namespace ravenstore::client
