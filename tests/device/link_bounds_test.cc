#include "device/link_bounds.h"

#include <gtest/gtest.h>

#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::MiB;

LinkBoundsOptions Small() {
  LinkBoundsOptions options;
  options.large = MiB(2);
  options.per_round = MiB(8);
  options.rounds = 2;
  options.window = MiB(8);
  return options;
}

TEST(LinkBoundsTest, NoLinkIsFasterThanItIs) {
  HostOptions host;
  host.total = MiB(64);
  host.bytes_per_second = 200e6;
  const auto devices = OpenHostDevices(host);
  const auto bounds = MeasureLink(*devices[0], Small());
  ASSERT_OK(bounds);
  for (const double rate : {bounds->up, bounds->down, bounds->up_queue, bounds->down_queue}) {
    EXPECT_GT(rate, 0);
    EXPECT_LE(rate, 201e6);
  }
  EXPECT_GT(bounds->duplex, 0);
  EXPECT_LE(bounds->duplex, 402e6);
}

TEST(LinkBoundsTest, OneWayIsAllThatIsMeasuredIfThatIsAsked) {
  HostOptions host;
  host.total = MiB(64);
  host.bytes_per_second = 200e6;
  LinkBoundsOptions options = Small();
  options.one_way = true;
  const auto bounds = MeasureLink(*OpenHostDevices(host)[0], options);
  ASSERT_OK(bounds);
  EXPECT_GT(bounds->up, 0);
  EXPECT_GT(bounds->down, 0);
  EXPECT_EQ(bounds->duplex + bounds->up_queue + bounds->down_queue, 0);
}

TEST(LinkBoundsTest, ABrokenLinkIsAnError) {
  HostOptions host;
  host.total = MiB(64);
  host.fail_copy = [](uint64_t nth) { return nth == 3; };
  const auto devices = OpenHostDevices(host);
  EXPECT_CODE(MeasureLink(*devices[0], Small()), core::ErrorCode::kDevice);
}

TEST(LinkBoundsTest, ALinkThatTakesTooLongIsAnError) {
  HostOptions host;
  host.total = MiB(64);
  host.bytes_per_second = 50e6;
  LinkBoundsOptions options = Small();
  options.time_limit = std::chrono::milliseconds(1);
  EXPECT_CODE(MeasureLink(*OpenHostDevices(host)[0], options), core::ErrorCode::kTimedOut);
}

TEST(LinkBoundsTest, SizesThatDoNotFitTheWindowAreRefused) {
  const auto devices = OpenHostDevices({});
  LinkBoundsOptions options = Small();
  options.large = MiB(3);
  EXPECT_CODE(MeasureLink(*devices[0], options), core::ErrorCode::kInvalidArgument);
}

TEST(StreamCostsTest, CallsCostTime) {
  const auto devices = OpenHostDevices({});
  const auto costs = MeasureStreamCosts(*devices[0], nullptr, 100);
  ASSERT_OK(costs);
  EXPECT_GT(costs->signal_after, 0);
  EXPECT_GT(costs->wait, 0);
  EXPECT_GT(costs->capturing, 0);
}

}  // namespace
}  // namespace ravenstore::device
