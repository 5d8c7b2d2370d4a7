#include "device/medium_channel.h"

#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/device/fake_medium.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;
using core::KiB;
using Fault = FakeMedium::Fault;

constexpr Bytes kUnit = KiB(4);
constexpr Bytes kSize = KiB(256);
// Copies of up to 64 KiB take four chunks.
constexpr MediumChannelOptions kOptions{.chunk = KiB(16), .depth = 3};

void Set(std::byte* to, const std::vector<uint8_t>& bytes) {
  memcpy(to, bytes.data(), bytes.size());
}
std::vector<uint8_t> Get(const std::byte* from, Bytes bytes) {
  std::vector<uint8_t> got(bytes.count());
  memcpy(got.data(), from, got.size());
  return got;
}

// A fake medium, memory, and a channel between them: of the CPU's memory, or of a device's.
class MediumChannelTest : public testing::TestWithParam<bool> {
 protected:
  MediumChannelTest() : memory_(kSize.count()), medium_(kSize) {
    if (!GetParam()) return;
    device_ = OpenHostDevices({}).front();
    auto range = device_->ReserveVaRange(core::MiB(2));
    RAVEN_CHECK(range.ok());
    range_ = *std::move(range);
    RAVEN_CHECK(range_->Create(Bytes{}, core::MiB(2)).ok());
  }

  std::unique_ptr<Channel> Open(MediumAccess access, MediumChannelOptions options = kOptions) {
    if (device_ == nullptr) return OpenMediumChannel(access, options);
    auto opened = OpenMediumChannel(*device_, access, options);
    RAVEN_CHECK(opened.ok());
    return *std::move(opened);
  }
  // The host backend's device memory is the CPU's to look at, too.
  std::byte* memory() {
    return device_ == nullptr ? reinterpret_cast<std::byte*>(memory_.data()) : range_->base();
  }
  Status Copy(Channel& channel, MediumAccess access, Bytes at, Bytes bytes) {
    std::byte* there = memory() + at.count();
    return access == MediumAccess::kRead ? channel.Copy(there, Source(medium_, at), bytes)
                                         : channel.Copy(Target(medium_, at), there, bytes);
  }
  static bool Reaches(Channel& channel, const Word& word, uint64_t value) {
    return Eventually([&] {
      channel.Poll();
      return word.load(std::memory_order_acquire) >= value;
    });
  }
  // Where copies come from and go to, to be set and looked at.
  std::byte* SourceOf(MediumAccess access) {
    return access == MediumAccess::kRead ? medium_.bytes() : memory();
  }
  std::byte* TargetOf(MediumAccess access) {
    return access == MediumAccess::kRead ? memory() : medium_.bytes();
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<VaRange> range_;
  std::vector<uint8_t> memory_;
  FakeMedium medium_;
};

constexpr MediumAccess kBothWays[] = {MediumAccess::kRead, MediumAccess::kWrite};

TEST_P(MediumChannelTest, AFaultOfAnyTransferStopsTheSignalsBehindItAndNoneBefore) {
  constexpr uint64_t kCopies = 8;
  constexpr uint64_t kChunks = 2;  // of each
  for (const MediumAccess access : kBothWays) {
    for (const Fault fault : {Fault::kFails, Fault::kFallsShort}) {
      for (uint64_t nth = 1; nth <= kCopies * kChunks; ++nth) {
        SCOPED_TRACE("transfer " + std::to_string(nth));
        Word words[kCopies] = {};
        auto channel = Open(access);
        const uint64_t before = medium_.transfers();
        medium_.set_fault([&](uint64_t n) { return n == before + nth ? fault : Fault::kNone; });
        for (uint64_t i = 0; i < kCopies; ++i) {
          // Once the fault is seen they are refused.
          const Status copied = Copy(*channel, access, KiB(32) * i, KiB(32));
          const Status signalled = channel->Signal(&words[i], 1);
          EXPECT_TRUE(i * kChunks >= nth || (copied.ok() && signalled.ok()));
        }
        ASSERT_TRUE(Eventually([&] { return !channel->Health().ok(); }));
        EXPECT_CODE(channel->Health(), ErrorCode::kSystem);
        EXPECT_CODE(Copy(*channel, access, Bytes{}, kUnit), ErrorCode::kSystem);
        EXPECT_CODE(channel->Signal(&words[0], 2), ErrorCode::kSystem);
        channel->Poll();
        channel.reset();
        for (uint64_t i = 0; i < kCopies; ++i) {
          EXPECT_EQ(words[i].load(), (i + 1) * kChunks < nth ? 1u : 0u) << "copy " << i;
        }
      }
    }
  }
}

TEST_P(MediumChannelTest, AFaultIsReportedInWords) {
  auto failing = Open(MediumAccess::kRead);
  medium_.set_fault([](uint64_t) { return Fault::kFails; });
  ASSERT_OK(Copy(*failing, MediumAccess::kRead, Bytes{}, kUnit));
  EXPECT_EQ(failing->Health().error().message, "the fake: transfer 1 fails");
  auto short_one = Open(MediumAccess::kRead);
  medium_.set_fault([](uint64_t) { return Fault::kFallsShort; });
  ASSERT_OK(Copy(*short_one, MediumAccess::kRead, kUnit, Bytes(1000)));
  EXPECT_EQ(short_one->Health().error().message,
            "the fake: a read of 1000 bytes at 4096 ended after 500");
}

// Each of the chunks of three copies in turn.
TEST_P(MediumChannelTest, AChannelThatGoesOnReportsWhichCopyFailed) {
  constexpr uint64_t kCopies = 3;
  constexpr uint64_t kChunks = 2;
  MediumChannelOptions options = kOptions;
  options.goes_on = true;
  const auto pattern = Pattern(KiB(32) * kCopies, 11);
  for (const MediumAccess access : kBothWays) {
    for (const Fault fault : {Fault::kFails, Fault::kFallsShort}) {
      for (uint64_t nth = 1; nth <= kCopies * kChunks; ++nth) {
        SCOPED_TRACE("transfer " + std::to_string(nth));
        Set(SourceOf(access), pattern);
        memset(TargetOf(access), 0, pattern.size());
        auto channel = Open(access, options);
        const uint64_t before = medium_.transfers();
        medium_.set_fault([&](uint64_t n) { return n == before + nth ? fault : Fault::kNone; });
        Word word{0};
        for (uint64_t i = 0; i < kCopies; ++i) {
          ASSERT_OK(Copy(*channel, access, KiB(32) * i, KiB(32)));
          ASSERT_OK(channel->Signal(&word, i + 1));
        }
        ASSERT_TRUE(Reaches(*channel, word, kCopies));
        EXPECT_TRUE(channel->Health().ok());
        for (uint64_t i = 0; i < kCopies; ++i) {
          const bool fails = (nth - 1) / kChunks == i;
          EXPECT_EQ(channel->OutcomeOf(i + 1).ok(), !fails) << "copy " << i;
          const std::byte* got = TargetOf(access) + i * KiB(32).count();
          const bool same = memcmp(got, pattern.data() + i * KiB(32).count(), KiB(32).count()) == 0;
          EXPECT_EQ(same, !fails) << "copy " << i;
        }
        ASSERT_OK(Copy(*channel, access, Bytes{}, KiB(32)));
        ASSERT_OK(channel->Signal(&word, kCopies + 1));
        ASSERT_TRUE(Reaches(*channel, word, kCopies + 1));
        EXPECT_TRUE(channel->OutcomeOf(kCopies + 1).ok());
      }
    }
  }
}

TEST_P(MediumChannelTest, TransfersThatEndInAnyOrderAreSignalledInOrder) {
  for (const MediumAccess access : kBothWays) {
    auto channel = Open(access);
    Word words[3] = {};
    medium_.Hold();
    const auto pattern = Pattern(KiB(48), 5);
    Set(SourceOf(access), pattern);
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_OK(Copy(*channel, access, KiB(16) * i, KiB(16)));
      ASSERT_OK(channel->Signal(&words[i], 1));
    }
    ASSERT_TRUE(Eventually([&] { return channel->Poll(), medium_.held() == 3; }));
    medium_.End(2);
    medium_.End(1);
    for (int i = 0; i < 100; ++i) channel->Poll();
    for (const Word& word : words) EXPECT_EQ(word.load(), 0u);
    medium_.End(0);
    ASSERT_TRUE(Reaches(*channel, words[2], 1));
    EXPECT_EQ(words[0].load(), 1u);
    EXPECT_EQ(Get(TargetOf(access), KiB(48)), pattern);
  }
}

TEST_P(MediumChannelTest, NoMoreIsUnderWayThanTheDepth) {
  for (const MediumAccess access : kBothWays) {
    auto channel = Open(access);
    Word word{0};
    medium_.Hold();
    ASSERT_OK(Copy(*channel, access, Bytes{}, kSize));
    ASSERT_OK(channel->Signal(&word, 1));
    const uint64_t chunks = kSize.count() / kOptions.chunk.count();
    for (uint64_t ended = 0; ended < chunks; ++ended) {
      const size_t most = std::min<size_t>(kOptions.depth, chunks - ended);
      ASSERT_TRUE(Eventually([&] { return channel->Poll(), medium_.held() == most; }));
      medium_.End(0);
    }
    EXPECT_TRUE(Reaches(*channel, word, 1));
  }
}

// The last of several copies to one place wins, though the medium ends them as it likes.
TEST_P(MediumChannelTest, CopiesToOnePlaceAreDoneInOrder) {
  for (const MediumAccess access : kBothWays) {
    auto channel = Open(access);
    Word word{0};
    medium_.Hold();
    const auto first = Pattern(kUnit, 1);
    const auto second = Pattern(kUnit, 2);
    Set(SourceOf(access), first);
    Set(SourceOf(access) + kUnit.count(), second);
    for (uint64_t i = 0; i < 2; ++i) {
      std::byte* there = memory() + KiB(64).count();
      const Bytes source = kUnit * i;
      if (access == MediumAccess::kRead) {
        ASSERT_OK(channel->Copy(there, Source(medium_, source), kUnit));
      } else {
        ASSERT_OK(channel->Copy(Target(medium_, KiB(64)), memory() + source.count(), kUnit));
      }
    }
    ASSERT_OK(channel->Signal(&word, 1));
    ASSERT_TRUE(Eventually([&] {
      channel->Poll();
      if (medium_.held() > 0) medium_.End(medium_.held() - 1);
      return word.load() == 1;
    }));
    EXPECT_EQ(Get(TargetOf(access) + KiB(64).count(), kUnit), second);
  }
}

TEST_P(MediumChannelTest, EndsThatItDoesNotReachAreRefused) {
  std::byte* const there = memory();
  for (const MediumAccess access : kBothWays) {
    auto channel = Open(access);
    EXPECT_CODE(channel->Copy(there, there, kUnit), ErrorCode::kInvalidArgument);
    EXPECT_CODE(channel->Copy(Target(medium_, {}), Source(medium_, {}), kUnit),
                ErrorCode::kInvalidArgument);
    const MediumAccess other =
        access == MediumAccess::kRead ? MediumAccess::kWrite : MediumAccess::kRead;
    EXPECT_CODE(Copy(*channel, other, {}, kUnit), ErrorCode::kInvalidArgument);
    EXPECT_CODE(Copy(*channel, access, Bytes(512), kUnit), ErrorCode::kInvalidArgument);
    EXPECT_CODE(Copy(*channel, access, kSize, Bytes(1)), ErrorCode::kInvalidArgument);
    EXPECT_CODE(Copy(*channel, access, kUnit, kSize), ErrorCode::kInvalidArgument);
    EXPECT_CODE(Copy(*channel, access, kUnit, Bytes(~uint64_t{0})), ErrorCode::kInvalidArgument);
    EXPECT_EQ(medium_.transfers(), 0u);
    // None of that is a failure of the channel.
    ASSERT_OK(channel->Health());
  }
}

TEST(MediumChannelDeviceTest, AFaultOfTheDeviceFailsTheChannelEitherWay) {
  for (const MediumAccess access : kBothWays) {
    for (uint64_t nth = 1; nth <= 4; ++nth) {
      HostOptions host;
      host.fail_copy = [&](uint64_t n) { return n == nth; };
      const auto device = OpenHostDevices(host).front();
      const auto range = device->ReserveVaRange(core::MiB(2));
      ASSERT_OK(range);
      ASSERT_OK((*range)->Create(Bytes{}, core::MiB(2)));
      auto opened = OpenMediumChannel(*device, access, kOptions);
      ASSERT_OK(opened);
      auto channel = *std::move(opened);
      FakeMedium medium(kSize);
      Word word{0};
      if (access == MediumAccess::kRead) {
        ASSERT_OK(channel->Copy((*range)->base(), Source(medium, {}), KiB(64)));
      } else {
        ASSERT_OK(channel->Copy(Target(medium, {}), (*range)->base(), KiB(64)));
      }
      const Status signalled = channel->Signal(&word, 1);
      ASSERT_TRUE(Eventually([&] { return !channel->Health().ok(); }));
      EXPECT_CODE(channel->Health(), ErrorCode::kDevice);
      channel.reset();
      EXPECT_EQ(word.load(), 0u);
    }
  }
}

// The driver refuses copies that run from one of a device's slabs into the next.
TEST(MediumChannelDeviceTest, ACopyOfTheDeviceEndsWhereSlabsMayMeet) {
  for (const MediumAccess access : kBothWays) {
    uint64_t copies = 0;
    HostOptions host;
    host.fail_copy = [&](uint64_t n) { return copies = n, false; };
    const auto device = OpenHostDevices(host).front();
    const auto range = device->ReserveVaRange(core::MiB(6));
    ASSERT_OK(range);
    ASSERT_OK((*range)->Create(Bytes{}, core::MiB(6)));
    const uint64_t unit = device->granularity().count();
    const auto begin = reinterpret_cast<uintptr_t>((*range)->base());
    std::byte* const meet = (*range)->base() + (unit - begin % unit);
    FakeMedium medium(kSize);
    auto channel = *OpenMediumChannel(*device, access, kOptions);
    Word word{0};
    const auto copy = [&](std::byte* at) {
      const Status copied = access == MediumAccess::kRead
                                ? channel->Copy(at, Source(medium, {}), kUnit)
                                : channel->Copy(Target(medium, {}), at, kUnit);
      const uint64_t value = word.load() + 1;
      return copied.ok() && channel->Signal(&word, value).ok() && Eventually([&] {
               channel->Poll();
               return word.load() == value;
             });
    };
    const auto pattern = Pattern(kUnit, 3);
    Set(access == MediumAccess::kRead ? medium.bytes() : meet - 512, pattern);
    ASSERT_TRUE(copy(meet - 512));
    EXPECT_EQ(Get(access == MediumAccess::kRead ? meet - 512 : medium.bytes(), kUnit), pattern);
    const uint64_t across = copies;
    ASSERT_TRUE(copy(meet));
    EXPECT_EQ(copies - across, 1u);
    EXPECT_EQ(across, 2u);
  }
}

TEST(MediumChannelDeviceTest, WithoutMemoryForItsRingItIsNotOpened) {
  HostOptions host;
  host.fail_create = [](uint64_t) { return true; };
  const auto device = OpenHostDevices(host).front();
  EXPECT_CODE(OpenMediumChannel(*device, MediumAccess::kRead, kOptions), ErrorCode::kDevice);
}

INSTANTIATE_TEST_SUITE_P(Memory, MediumChannelTest, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Device" : "Host"; });

}  // namespace
}  // namespace ravenstore::device
