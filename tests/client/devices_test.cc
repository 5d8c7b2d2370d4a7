#include "client/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <thread>

#include "ipc/clock.h"
#include "ipc/segment.h"

namespace ravenstore::client {
namespace {

using core::Bytes;
using core::ErrorCode;
using core::MiB;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

// The daemon's side is memory of the same device object, in the same process.
class DevicesTest : public testing::Test {
 protected:
  DevicesTest()
      : segment_(*ipc::ControlSegment::Create(1)),
        devices_(device::OpenHostDevices({.count = 3})),
        client_(devices_[0], 0, 0, MiB(64), segment_.get()) {}

  // As the mapper does with the daemon's instructions.
  core::Status Import(uint32_t memory, uint64_t bytes) {
    memories_[memory] = *devices_[0]->CreateMemory(Bytes(bytes));
    return client_.Import(memory, Bytes(bytes), memories_[memory]->Export());
  }
  core::Status Map(uint32_t memory, uint64_t offset, uint64_t bytes) {
    RAVEN_RETURN_IF_ERROR(Import(memory, bytes));
    return client_.Map(memory, offset, bytes);
  }
  core::Status Ensure(uint64_t offset, uint64_t bytes, milliseconds timeout = milliseconds(2)) {
    return client_.EnsureMapped(offset, bytes, ipc::Now() + timeout, phase_);
  }

  ipc::ControlSegment segment_;
  device::Devices devices_;
  ClientDevice client_;
  PhaseWord phase_{Phase::kAttached};
  std::map<uint32_t, std::shared_ptr<const device::PhysicalMemory>> memories_;
};

TEST_F(DevicesTest, NothingIsReservedBeforeItIsNeeded) {
  EXPECT_EQ(client_.base(), nullptr);
  ASSERT_TRUE(client_.Prepare().ok());
  EXPECT_NE(client_.base(), nullptr);
  EXPECT_TRUE(client_.Prepare().ok());
}

TEST_F(DevicesTest, MemoryIsWhereItIsMapped) {
  ASSERT_TRUE(Import(3, 8 * kMiB).ok());
  EXPECT_NE(client_.base(), nullptr) << "the first import makes the arena";
  EXPECT_FALSE(client_.Mapped(8 * kMiB, 1));
  ASSERT_TRUE(client_.Map(3, 8 * kMiB, 8 * kMiB).ok());
  EXPECT_TRUE(client_.Mapped(8 * kMiB, 8 * kMiB));
  EXPECT_FALSE(client_.Mapped(8 * kMiB, 8 * kMiB + 1));
  EXPECT_FALSE(client_.Mapped(8 * kMiB - 1, 1));
  const auto there = devices_[0]->ReserveVaRange(MiB(8)).value();
  ASSERT_TRUE(there->Map(Bytes(0), memories_[3]).ok());
  there->base()[4096] = std::byte{42};
  EXPECT_EQ(client_.base()[8 * kMiB + 4096], std::byte{42});
}

TEST_F(DevicesTest, MemoryMayBeMappedElsewhereLater) {
  ASSERT_TRUE(Map(0, 0, 2 * kMiB).ok());
  client_.base()[5] = std::byte{7};
  ASSERT_TRUE(client_.Unmap(0).ok());
  EXPECT_FALSE(client_.Mapped(0, 1));
  ASSERT_TRUE(client_.Map(0, 4 * kMiB, 2 * kMiB).ok());
  EXPECT_EQ(client_.base()[4 * kMiB + 5], std::byte{7});
  ASSERT_TRUE(Map(1, 0, 2 * kMiB).ok());
  EXPECT_TRUE(client_.Mapped(0, 2 * kMiB));
}

TEST_F(DevicesTest, ATensorInMemoryThatCannotBeMappedSaysWhy) {
  memories_[0] = *devices_[0]->CreateMemory(MiB(2));
  EXPECT_FALSE(client_.Import(0, MiB(4), memories_[0]->Export()).ok());
  EXPECT_FALSE(client_.Map(0, 0, 4 * kMiB).ok());
  for (int i = 0; i < 2; ++i) {
    const auto mapped = Ensure(0, 1);
    ASSERT_FALSE(mapped.ok());
    EXPECT_EQ(mapped.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(mapped.error().message, HasSubstr("4194304 bytes"));
  }
  EXPECT_TRUE(client_.Unmap(0).ok());
  EXPECT_TRUE(client_.Release(0).ok());
  EXPECT_EQ(Ensure(0, 1).error().code, ErrorCode::kTimedOut);
}

TEST_F(DevicesTest, ADescriptorThatDidNotArriveIsTheErrorOfTheCallThatNeedsIt) {
  const core::Error missed{ErrorCode::kTimedOut, "its descriptor did not arrive"};
  EXPECT_EQ(client_.Import(0, MiB(2), missed).error().code, ErrorCode::kTimedOut);
  EXPECT_FALSE(client_.Map(0, 0, 2 * kMiB).ok());
  EXPECT_THAT(Ensure(0, 1).error().message, HasSubstr("its descriptor did not arrive"));
}

TEST_F(DevicesTest, AWaitThatTimesOutSaysWhatWasMissing) {
  EXPECT_THAT(Ensure(0, 1).error().message, HasSubstr("not mapped in time"));
  client_.NoteMissedPacket({ErrorCode::kCorrupt, "no room for descriptors"});
  EXPECT_THAT(Ensure(0, 1).error().message, HasSubstr("did not arrive: no room for descriptors"));
}

TEST_F(DevicesTest, ExtentAcrossMemoriesNeedsAllOfThem) {
  ASSERT_TRUE(Map(1, 8 * kMiB, 8 * kMiB).ok());
  const auto early = Ensure(6 * kMiB, 4 * kMiB);
  ASSERT_FALSE(early.ok());
  EXPECT_EQ(early.error().code, ErrorCode::kTimedOut);
  std::thread mapper([&] { EXPECT_TRUE(Map(0, 0, 8 * kMiB).ok()); });
  EXPECT_TRUE(Ensure(6 * kMiB, 4 * kMiB, seconds(10)).ok());
  mapper.join();
  EXPECT_TRUE(client_.Mapped(6 * kMiB, 4 * kMiB));
}

TEST_F(DevicesTest, InstructionsThatMakeNoSenseAreRefused) {
  ASSERT_TRUE(Import(0, 2 * kMiB).ok());
  const auto code = [&](uint32_t memory, uint64_t offset, uint64_t bytes) {
    return client_.Map(memory, offset, bytes).error().code;
  };
  EXPECT_EQ(code(0, 1, 2 * kMiB), ErrorCode::kCorrupt) << "misaligned";
  EXPECT_EQ(code(0, 0, 0), ErrorCode::kCorrupt);
  EXPECT_EQ(code(0, 63 * kMiB, 2 * kMiB), ErrorCode::kCorrupt) << "beyond the arena";
  EXPECT_EQ(code(0, ~uint64_t{0} - 2 * kMiB + 1, 2 * kMiB), ErrorCode::kCorrupt);
  EXPECT_EQ(code(0, 0, 4 * kMiB), ErrorCode::kCorrupt) << "not its size";
  EXPECT_EQ(code(9, 0, 2 * kMiB), ErrorCode::kCorrupt) << "unknown memory";
  ASSERT_TRUE(client_.Map(0, 0, 2 * kMiB).ok());
  EXPECT_EQ(code(0, 0, 2 * kMiB), ErrorCode::kCorrupt) << "twice";
  EXPECT_TRUE(client_.Mapped(0, 2 * kMiB)) << "the first is there";
  EXPECT_EQ(client_.Unmap(4 * kMiB).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(client_.Release(9).error().code, ErrorCode::kNotFound);
}

TEST_F(DevicesTest, PlacesOutsideTheArenaAreRefused) {
  EXPECT_EQ(Ensure(63 * kMiB, 2 * kMiB).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(Ensure(~uint64_t{0} - 511, 1024).error().code, ErrorCode::kCorrupt);
  EXPECT_FALSE(client_.Mapped(~uint64_t{0} - 511, 1024));
}

TEST_F(DevicesTest, WaitForMemoryEndsWithTheSession) {
  std::thread watcher([&] {
    phase_.store(Phase::kLost);
    client_.WakeWaiters();
  });
  EXPECT_EQ(Ensure(0, 1, seconds(10)).error().code, ErrorCode::kLost);
  watcher.join();
}

TEST_F(DevicesTest, WhileTheDriverHoldsUpAnUnmapWaitsEnd) {
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
  const auto memory = *devices[0]->CreateMemory(MiB(2));
  ASSERT_TRUE(client.Import(0, MiB(2), memory->Export()).ok());
  ASSERT_TRUE(client.Map(0, 0, 2 * kMiB).ok());
  hold = true;
  std::thread mapper([&client] { EXPECT_TRUE(client.Unmap(0).ok()); });
  held.get_future().wait();
  EXPECT_FALSE(client.Mapped(0, 1));
  EXPECT_EQ(client.EnsureMapped(0, 1, ipc::Now(), phase_).error().code, ErrorCode::kTimedOut);
  client.WakeWaiters();
  client.LockForFork();
  client.UnlockAfterFork();
  go_on.set_value();
  mapper.join();
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
