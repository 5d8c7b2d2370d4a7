// What every Channel of device.h must do, between memories and between memory and a file, on every
// backend that there is. It is a program of its own as well: //tests/device:
// channel_conformance_gpu_test needs nothing but libc and a driver.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "tests/device/backends.h"
#include "tests/device/links.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::KiB;
using core::MiB;

class ChannelConformance : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string why_not;
    link_ = OpenLink(GetParam(), &why_not);
    ASSERT_NE(link_, nullptr) << why_not;
  }

  Place& From(bool forth) { return forth ? link_->near() : link_->far(); }
  Place& To(bool forth) { return From(!forth); }
  Status Copy(Channel& channel, bool forth, Bytes to, Bytes from, Bytes bytes) {
    return channel.Copy(To(forth).TargetAt(to), From(forth).SourceAt(from), bytes);
  }
  static bool Reaches(Channel& channel, const Word& word, uint64_t value) {
    return Eventually([&] {
      channel.Poll();
      return word.load(std::memory_order_acquire) >= value;
    });
  }

  // A failure may break the link for good.
  void FailACopy(bool forth) {
    auto channel = link_->Open(forth);
    Word words[2] = {};
    ASSERT_OK(Copy(*channel, forth, Bytes{}, Bytes{}, MiB(1)));
    ASSERT_OK(channel->Signal(&words[0], 1));
    ASSERT_TRUE(Reaches(*channel, words[0], 1));
    if (!link_->FailNextCopy()) GTEST_SKIP() << "this link cannot be made to fail";
    ASSERT_OK(Copy(*channel, forth, Bytes{}, Bytes{}, MiB(1)));
    const auto signalled = channel->Signal(&words[1], 1);  // either it is refused, or never fires
    ASSERT_TRUE(Eventually([&] { return !channel->Health().ok(); }));
    EXPECT_FALSE(channel->Health().error().message.empty());
    EXPECT_FALSE(Copy(*channel, forth, Bytes{}, Bytes{}, MiB(1)).ok());
    EXPECT_FALSE(channel->Signal(&words[1], 2).ok());
    channel.reset();
    EXPECT_EQ(words[1].load(), 0u);
  }

  std::unique_ptr<TestLink> link_;
};

TEST_P(ChannelConformance, ASignalComesAfterTheCopiesBeforeIt) {
  for (const bool forth : {true, false}) {
    const auto channel = link_->Open(forth);
    Word word{0};
    for (uint64_t round = 1; round <= 3; ++round) {
      const auto pattern = Pattern(MiB(4), round + forth);
      From(forth).Write(Bytes{}, pattern);
      const Bytes part(MiB(4).count() / 32);
      for (uint64_t i = 0; i < 32; ++i) {
        ASSERT_OK(Copy(*channel, forth, part * i, part * i, part));
      }
      ASSERT_OK(channel->Signal(&word, round));
      ASSERT_TRUE(Reaches(*channel, word, round));
      EXPECT_EQ(To(forth).Read(Bytes{}, MiB(4)), pattern);
    }
    ASSERT_OK(channel->Health());
  }
}

TEST_P(ChannelConformance, CopiesAreDoneInOrder) {
  for (const bool forth : {true, false}) {
    const auto channel = link_->Open(forth);
    const Bytes part = KiB(512);
    const auto first = Pattern(part, 1);
    const auto last = Pattern(part, 2);
    From(forth).Write(Bytes{}, first);
    From(forth).Write(part, last);
    Word words[20] = {};
    for (uint64_t i = 0; i < 20; ++i) {
      ASSERT_OK(Copy(*channel, forth, Bytes{}, part * (i % 2), part));
      ASSERT_OK(channel->Signal(&words[i], 1));
    }
    for (size_t i = 20; i-- > 0;) ASSERT_TRUE(Reaches(*channel, words[i], 1));
    EXPECT_EQ(To(forth).Read(Bytes{}, part), last);
  }
}

TEST_P(ChannelConformance, ACopyOfAnySizeChangesNothingAroundIt) {
  for (const bool forth : {true, false}) {
    const auto channel = link_->Open(forth);
    Word word{0};
    uint64_t signals = 0;
    for (const uint64_t size : {1u, 511u, 4096u, 4097u, 262'144u, 262'145u, 1'000'000u}) {
      const Bytes bytes(size);
      // In units of a file's; it may fill the last one up.
      const Bytes unit = KiB(4);
      const Bytes end = unit + bytes.RoundUp(unit);
      const auto before = Pattern(end + unit, size);
      const auto pattern = Pattern(bytes, size + 1);
      To(forth).Write(Bytes{}, before);
      From(forth).Write(unit, pattern);
      ASSERT_OK(Copy(*channel, forth, unit, unit, bytes));
      ASSERT_OK(channel->Signal(&word, ++signals));
      ASSERT_TRUE(Reaches(*channel, word, signals));
      EXPECT_EQ(To(forth).Read(unit, bytes), pattern) << size;
      const auto cut = [&](Bytes from, Bytes to) {
        return std::vector<uint8_t>(before.begin() + static_cast<ptrdiff_t>(from.count()),
                                    before.begin() + static_cast<ptrdiff_t>(to.count()));
      };
      EXPECT_EQ(To(forth).Read(Bytes{}, unit), cut(Bytes{}, unit)) << size;
      EXPECT_EQ(To(forth).Read(end, unit), cut(end, end + unit)) << size;
    }
  }
}

TEST_P(ChannelConformance, DestroyingItWaitsForItsQueue) {
  for (const bool forth : {true, false}) {
    auto channel = link_->Open(forth);
    const auto pattern = Pattern(MiB(4), 7 + forth);
    From(forth).Write(Bytes{}, pattern);
    Word word{0};
    ASSERT_OK(Copy(*channel, forth, Bytes{}, Bytes{}, MiB(4)));
    ASSERT_OK(channel->Signal(&word, 1));
    channel.reset();
    EXPECT_EQ(word.load(std::memory_order_acquire), 1u);
    EXPECT_EQ(To(forth).Read(Bytes{}, MiB(4)), pattern);
  }
}

TEST_P(ChannelConformance, AFailedCopyIsSeenAndNothingAfterItIsSignalled) {
  FailACopy(true);
}

TEST_P(ChannelConformance, AFailedCopyBackIsSeenAndNothingAfterItIsSignalled) {
  FailACopy(false);
}

INSTANTIATE_TEST_SUITE_P(Links, ChannelConformance,
                         testing::Values("host_memory", "host_device", "host_peer", "host_file",
                                         "host_medium", "fake_memory", "fake_device", "fake_peer",
                                         "fake_file", "fake_medium", "cuda_memory", "cuda_file",
                                         "memory_file", "memory_medium", "host_parts_peer",
                                         "fake_parts_peer", "cuda_parts_peer"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ravenstore::device

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  ravenstore::device::SkipAbsentBackends();
  return RUN_ALL_TESTS();
}
