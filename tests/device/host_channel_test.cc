#include "device/host_channel.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::MiB;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using TimePoint = HostLink::TimePoint;

TEST(HostLinkTest, ACopyTakesItsBytesAndTheLatency) {
  HostLink link(1e9, microseconds(10));
  const TimePoint begin{milliseconds(5)};
  EXPECT_EQ(link.Occupy(begin, core::Bytes(1'000'000)), begin + microseconds(1010));
}

TEST(HostLinkTest, CopiesQueueForTheLink) {
  HostLink link(1e9, {});
  const TimePoint begin{milliseconds(5)};
  EXPECT_EQ(link.Occupy(begin, core::Bytes(1'000'000)), begin + milliseconds(1));
  EXPECT_EQ(link.Occupy(begin, core::Bytes(1'000'000)), begin + milliseconds(2));
  // One that comes later finds the link free again.
  EXPECT_EQ(link.Occupy(begin + milliseconds(7), core::Bytes(1'000'000)), begin + milliseconds(8));
}

TEST(HostLinkTest, WithoutARateOnlyTheLatencyCounts) {
  EXPECT_FALSE(HostLink(0, {}).paced());
  HostLink link(0, microseconds(3));
  EXPECT_TRUE(link.paced());
  EXPECT_EQ(link.Occupy(TimePoint{milliseconds(1)}, MiB(999)),
            TimePoint{milliseconds(1)} + microseconds(3));
}

TEST(HostChannelTest, APacedCopyIsNotFasterThanItsLink) {
  // 4 MiB at 100 MiB/s: 40 ms.
  auto link = std::make_shared<HostLink>(100.0 * (1 << 20), core::Duration{});
  auto channel = OpenHostChannel("HOST-0", {HostStep::Kind::kUp}, link,
                                 std::make_shared<HostFaults>(HostOptions{}));
  std::vector<char> from(MiB(4).count(), 1);
  std::vector<char> to(MiB(4).count());
  Word word{0};
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < 4; ++i) {
    const uint64_t at = MiB(i).count();
    ASSERT_OK(channel->Copy(to.data() + at, from.data() + at, MiB(1)));
  }
  ASSERT_OK(channel->Signal(&word, 1));
  ASSERT_TRUE(Eventually([&] { return word.load(std::memory_order_acquire) == 1; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(40));
  EXPECT_EQ(to, from);
}

TEST(HostChannelTest, TheNthCopyFailsAndTheChannelWithIt) {
  HostOptions options;
  options.fail_copy = [](uint64_t nth) { return nth == 2; };
  auto faults = std::make_shared<HostFaults>(options);
  auto link = std::make_shared<HostLink>(0, core::Duration{});
  auto channel = OpenHostChannel("HOST-0", {HostStep::Kind::kUp}, link, faults);
  auto other = OpenHostChannel("HOST-0", {HostStep::Kind::kUp}, link, faults);
  char from = 1;
  char to[3] = {};
  ASSERT_OK(channel->Copy(&to[0], &from, core::Bytes(1)));
  ASSERT_OK(channel->Copy(&to[1], &from, core::Bytes(1)));
  ASSERT_TRUE(Eventually([&] { return !channel->Health().ok(); }));
  EXPECT_EQ(channel->Health().error().message, "HOST-0: copy: injected fault");
  ASSERT_OK(other->Copy(&to[2], &from, core::Bytes(1)));
  channel.reset();
  other.reset();
  EXPECT_EQ(to[0], 1);
  EXPECT_EQ(to[1], 0);
  EXPECT_EQ(to[2], 1);
}

TEST(HostChannelTest, AFaultIsAnErrorOrWrongBytesAndAFailureOrLate) {
  HostFault fault = HostFault::kRefused;
  HostOptions options;
  options.fault = [&](HostStep) { return fault; };
  auto channel = OpenHostChannel("HOST-0", {HostStep::Kind::kDown},
                                 std::make_shared<HostLink>(0, core::Duration{}),
                                 std::make_shared<HostFaults>(options));
  const std::vector<char> from(4, 1);
  std::vector<char> to(4);
  EXPECT_CODE(channel->Copy(to.data(), from.data(), core::Bytes(4)), core::ErrorCode::kDevice);
  ASSERT_OK(channel->Health());
  fault = HostFault::kIsLate;
  const auto begin = std::chrono::steady_clock::now();
  Word word{0};
  ASSERT_OK(channel->Copy(to.data(), from.data(), core::Bytes(4)));
  ASSERT_OK(channel->Signal(&word, 1));
  ASSERT_TRUE(Eventually([&] { return word.load(std::memory_order_acquire) == 1; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(1));
  EXPECT_EQ(to, from);
  fault = HostFault::kBreaksOff;
  ASSERT_OK(channel->Copy(to.data(), from.data(), core::Bytes(4)));
  ASSERT_TRUE(Eventually([&] { return !channel->Health().ok(); }));
  EXPECT_NE(to[1], from[1]);
  EXPECT_EQ(to[2], from[2]);
}

}  // namespace
}  // namespace ravenstore::device
