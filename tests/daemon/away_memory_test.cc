#include "daemon/away_memory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"
#include "tests/device/fake_medium.h"
#include "tests/device/fake_pieces.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::DeviceId;
using core::KiB;
using core::MiB;
using device::Direction;

constexpr DeviceId kFirst{0};
constexpr DeviceId kSecond{1};

class AwayMemoryTest : public testing::Test {
 protected:
  AwayMemoryTest() : devices_(device::OpenHostDevices({.count = 2})) {
    arena_ = std::move(*devices_[0]->ReserveVaRange(MiB(4)));
    RAVEN_CHECK(arena_->Create(Bytes{}, MiB(4)).ok());
  }

  static core::Status Copy(device::Channel& channel, device::Target to, device::Source from,
                           Bytes bytes) {
    device::Word done{0};
    RAVEN_RETURN_IF_ERROR(channel.Copy(to, from, bytes));
    RAVEN_RETURN_IF_ERROR(channel.Signal(&done, 1));
    while (done.load() == 0) {
      channel.Poll();
      RAVEN_RETURN_IF_ERROR(channel.Health());
      std::this_thread::yield();
    }
    return core::Ok();
  }
  // A pattern goes from the device to the pool and back.
  void ExpectKeeps(AwayMemory& memory, DeviceId device, std::byte* here) {
    const Bytes place = memory.granularity() * 3;
    std::memset(here, 7, MiB(1).count());
    auto out = memory.Open(device, Direction::kDeviceToHost);
    auto in = memory.Open(device, Direction::kHostToDevice);
    ASSERT_TRUE(out.ok() && in.ok());
    ASSERT_TRUE(Copy(**out, memory.TargetAt(place), here, MiB(1)).ok());
    std::memset(here, 0, MiB(1).count());
    ASSERT_TRUE(Copy(**in, here, memory.SourceAt(place), MiB(1)).ok());
    EXPECT_EQ(here[0], std::byte{7});
    EXPECT_EQ(here[MiB(1).count() - 1], std::byte{7});
    EXPECT_TRUE(memory.Health().ok());
  }

  device::Devices devices_;
  std::unique_ptr<device::VaRange> arena_;
};

TEST_F(AwayMemoryTest, TheHostPoolIsReachedDirectly) {
  std::shared_ptr<device::VaRange> range = *devices_[0]->ReserveHostVaRange(MiB(4), -1);
  ASSERT_TRUE(range->Create(Bytes{}, MiB(4)).ok());
  const auto memory = HostMemory(devices_, range);
  EXPECT_FALSE(memory->IsStaged(kFirst));
  ExpectKeeps(*memory, kFirst, arena_->base());
}

TEST_F(AwayMemoryTest, HarvestedMemoryComesAndGoesAndIsCopiedToTheHost) {
  auto range = *devices_[1]->ReserveVaRange(MiB(8));
  const auto memory = PeerMemory(devices_, kSecond, std::move(range), Bytes{}, {kFirst});
  EXPECT_TRUE(memory->slabs.all().empty());
  ASSERT_TRUE(memory->Make(MiB(2), MiB(2)).ok());
  const auto in = memory->Open(kFirst, Direction::kDeviceToHost);
  ASSERT_TRUE(in.ok());
  std::memset(arena_->base(), 5, MiB(1).count());
  ASSERT_TRUE(Copy(**in, memory->TargetAt(MiB(2)), arena_->base(), MiB(1)).ok());
  const std::shared_ptr<device::VaRange> host = *devices_[0]->ReserveHostVaRange(MiB(2), -1);
  ASSERT_TRUE(host->Create(Bytes{}, MiB(2)).ok());
  const auto on = memory->OpenToHost();
  ASSERT_TRUE(on.ok());
  ASSERT_TRUE(Copy(**on, host->base(), memory->SourceAt(MiB(2)), MiB(1)).ok());
  EXPECT_EQ(host->base()[MiB(1).count() - 1], std::byte{5});
  EXPECT_TRUE(memory->Destroy(MiB(2)).ok());
}

TEST_F(AwayMemoryTest, APeerWhoseCopiesOnlyFailIsLost) {
  const auto memory =
      PeerMemory(devices_, kSecond, *devices_[1]->ReserveVaRange(MiB(2)), Bytes{}, {kFirst});
  const auto fail = [&memory](int64_t from, int64_t to) {
    for (int64_t at = from; at < to; ++at) memory->Ended(false, core::Tick(core::Duration(at)));
  };
  fail(1, 8);
  EXPECT_TRUE(memory->Health().ok());
  memory->Ended(true, core::Tick(core::Duration(8)));
  for (int i = 0; i < 20; ++i) fail(9, 10);  // all that is queued with one channel
  EXPECT_TRUE(memory->Health().ok());
  fail(10, 17);
  const core::Status health = memory->Health();
  ASSERT_FALSE(health.ok());
  EXPECT_EQ(health.error().message, "HOST-1: 8 copies in a row failed");
}

TEST_F(AwayMemoryTest, APeersShareIsReachedDirectlyOrByWayOfTheHost) {
  auto range = *devices_[1]->ReserveVaRange(MiB(4));
  ASSERT_TRUE(range->Create(Bytes{}, MiB(4)).ok());
  const auto memory = PeerMemory(devices_, kSecond, std::move(range), MiB(4), {kFirst});
  EXPECT_FALSE(memory->IsStaged(kFirst));
  ExpectKeeps(*memory, kFirst, arena_->base());
  EXPECT_TRUE(memory->IsStaged(kSecond));
  const auto own = *devices_[1]->ReserveVaRange(MiB(4));
  ASSERT_TRUE(own->Create(Bytes{}, MiB(4)).ok());
  ExpectKeeps(*memory, kSecond, own->base());
  EXPECT_EQ(memory->slabs.Contiguous(Bytes{}), MiB(4));
}

TEST_F(AwayMemoryTest, AMediumIsStagedAndLostOnceItOnlyFails) {
  auto fake = std::make_unique<device::FakeMedium>(MiB(4));
  device::FakeMedium& medium = *fake;
  const auto memory = MemoryOf(devices_, std::move(fake));
  EXPECT_TRUE(memory->IsStaged(kFirst));
  EXPECT_EQ(memory->granularity(), KiB(4));
  EXPECT_EQ(memory->slabs.Contiguous(Bytes{}), MiB(4));
  ExpectKeeps(*memory, kFirst, arena_->base());
  medium.set_fault([](uint64_t) { return device::FakeMedium::Fault::kFails; });
  for (int failures = 0; failures < 8; ++failures) {
    EXPECT_TRUE(memory->Health().ok()) << failures;
    const auto in = memory->Open(kFirst, Direction::kHostToDevice);
    ASSERT_TRUE(in.ok());
    EXPECT_FALSE(Copy(**in, arena_->base(), memory->SourceAt(Bytes{}), KiB(4)).ok());
  }
  EXPECT_FALSE(memory->Health().ok());
}

TEST_F(AwayMemoryTest, AMediumInPiecesIsMadeByPiecesAndNeverLostAsAWhole) {
  auto fake = std::make_unique<device::FakePieces>(MiB(16), MiB(4));
  device::FakePieces& lenders = *fake;
  const auto memory = MemoryInPieces(devices_, std::move(fake));
  EXPECT_TRUE(memory->IsStaged(kFirst));
  EXPECT_EQ(memory->granularity(), KiB(64));
  EXPECT_TRUE(memory->slabs.all().empty());
  ASSERT_TRUE(memory->Make(Bytes{}, MiB(4)).ok());
  ASSERT_TRUE(memory->Make(MiB(8), MiB(4)).ok());
  EXPECT_EQ(lenders.pieces(), (std::vector<Bytes>{Bytes{}, MiB(8)}));
  ExpectKeeps(*memory, kFirst, arena_->base());
  const std::shared_ptr<device::VaRange> host = *devices_[0]->ReserveHostVaRange(MiB(2), -1);
  ASSERT_TRUE(host->Create(Bytes{}, MiB(2)).ok());
  const auto on = memory->OpenToHost();
  ASSERT_TRUE(on.ok());
  const Bytes place = memory->granularity() * 3;  // where ExpectKeeps left its pattern
  ASSERT_TRUE(Copy(**on, host->base(), memory->SourceAt(place), MiB(1)).ok());
  EXPECT_EQ(host->base()[MiB(1).count() - 1], std::byte{7});
  ASSERT_TRUE(lenders.Lose(MiB(8)));
  device::Word done{0};
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE((*on)->Copy(host->base(), memory->SourceAt(MiB(8)), KiB(64)).ok());
    ASSERT_TRUE((*on)->Signal(&done, i).ok());
    while (done.load() < i) (*on)->Poll();
    EXPECT_FALSE((*on)->OutcomeOf(i).ok());
  }
  EXPECT_TRUE(memory->Health().ok());
  EXPECT_TRUE(memory->Destroy(MiB(8)).ok());
  EXPECT_TRUE(memory->Destroy(Bytes{}).ok());
}

}  // namespace
}  // namespace ravenstore::daemon
