// How a client maps what the daemon hands it. tests/daemon/pinned_test.cc has the whole of it.
#include "client/pinned.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

// The daemon's side is a range of another device object in the same process.
class PinnedMemoryTest : public testing::Test {
 protected:
  PinnedMemoryTest()
      : segment_(*ipc::ControlSegment::Create(1)),
        devices_(device::OpenHostDevices({.count = 1})),
        daemon_(*devices_[0]->ReserveHostVaRange(MiB(64), -1)),
        device_(devices_[0], 0, 0, MiB(64), segment_.get()) {}

  core::Status Offer(uint64_t offset, uint64_t bytes) {
    EXPECT_TRUE(daemon_->Create(Bytes(offset), Bytes(bytes)).ok());
    return memory_.Offer({0, offset, bytes}, *daemon_->Export(Bytes(offset)));
  }
  core::Result<std::byte*> Map(uint64_t offset, uint64_t bytes, core::Tick deadline) {
    return memory_.Map({0, -1, 64 * kMiB, offset}, bytes, device_, deadline, phase_);
  }
  core::Tick ShortDeadline() { return ipc::Now() + milliseconds(2); }
  core::Tick Patiently() { return ipc::Now() + std::chrono::seconds(10); }

  ipc::ControlSegment segment_;
  device::Devices devices_;
  std::unique_ptr<device::VaRange> daemon_;
  ClientDevice device_;
  PhaseWord phase_{Phase::kAttached};
  PinnedMemory memory_;
};

TEST_F(PinnedMemoryTest, ABlockMayLieInSeveralSlabsThatComeInAnyOrder) {
  ASSERT_TRUE(Offer(4 * kMiB, 2 * kMiB).ok());
  std::thread later([&] { EXPECT_TRUE(Offer(2 * kMiB, 2 * kMiB).ok()); });
  const auto block = Map(3 * kMiB, 2 * kMiB, Patiently());
  later.join();
  ASSERT_TRUE(block.ok());
  for (const uint64_t at : {uint64_t{0}, kMiB - 1, kMiB, 2 * kMiB - 1}) {
    (*block)[at] = std::byte{42};
    EXPECT_EQ(daemon_->base()[3 * kMiB + at], std::byte{42}) << at;
  }
  // Both are mapped for the next block, too.
  EXPECT_TRUE(Map(2 * kMiB, 4 * kMiB, ShortDeadline()).ok());
}

TEST_F(PinnedMemoryTest, ASlabThatDoesNotComeIsAnErrorInWords) {
  const auto late = Map(0, kMiB, ShortDeadline());
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, ErrorCode::kTimedOut);
  EXPECT_THAT(late.error().message, HasSubstr("did not send"));
  memory_.NoteMissedPacket({ErrorCode::kLimit, "no descriptors left"});
  EXPECT_THAT(Map(0, kMiB, ShortDeadline()).error().message, HasSubstr("no descriptors left"));
  phase_.store(Phase::kLost);
  EXPECT_EQ(Map(0, kMiB, Patiently()).error().code, ErrorCode::kLost);
}

TEST_F(PinnedMemoryTest, PlacesOutsideThePoolAndSlabsOfferedTwiceAreRefused) {
  EXPECT_EQ(Map(64 * kMiB, 1, ShortDeadline()).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(Map(63 * kMiB, 2 * kMiB, ShortDeadline()).error().code, ErrorCode::kCorrupt);
  ASSERT_TRUE(Offer(0, 2 * kMiB).ok());
  EXPECT_FALSE(memory_.Offer({0, 0, 2 * kMiB}, {}).ok());
  ASSERT_TRUE(Map(0, kMiB, ShortDeadline()).ok());
  EXPECT_FALSE(memory_.Offer({0, 0, 2 * kMiB}, {}).ok());
}

TEST_F(PinnedMemoryTest, AReleasedSlabIsMappedNoMore) {
  ASSERT_TRUE(Offer(0, 2 * kMiB).ok());
  ASSERT_TRUE(Map(0, kMiB, ShortDeadline()).ok());
  EXPECT_TRUE(memory_.Release({0, 0}).ok());
  EXPECT_EQ(Map(0, kMiB, ShortDeadline()).error().code, ErrorCode::kTimedOut);
  ASSERT_TRUE(daemon_->Unmap(Bytes{0}).ok());
  ASSERT_TRUE(Offer(0, 2 * kMiB).ok());
  EXPECT_TRUE(memory_.Release({0, 0}).ok());  // before anybody mapped it
  EXPECT_EQ(Map(0, kMiB, ShortDeadline()).error().code, ErrorCode::kTimedOut);
}

TEST_F(PinnedMemoryTest, ABlockIsTakenOnce) {
  std::byte byte{};
  EXPECT_FALSE(memory_.any_blocks());
  memory_.Keep(&byte, {.number = memory_.NewNumber(), .device = &device_, .streams = {}});
  EXPECT_TRUE(memory_.any_blocks());
  const auto block = memory_.Take(&byte);
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->number, 1u);
  EXPECT_FALSE(memory_.Take(&byte).has_value());
  EXPECT_EQ(memory_.NewNumber(), 2u);
}

}  // namespace
}  // namespace ravenstore::client
