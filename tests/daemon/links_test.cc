#include "daemon/links.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/device/fake_medium.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

std::shared_ptr<device::Device> DeviceWith(const device::HostOptions& options) {
  return device::OpenHostDevices(options).front();
}

// A machine may be slower than the link that it paces, never faster.
TEST(LinksTest, EachDeviceHasTheRatesOfItsOwnLink) {
  const auto links = MeasureLinks(
      {DeviceWith({.bytes_per_second = 400e6}), DeviceWith({.bytes_per_second = 1200e6})},
      kTestPatience);
  ASSERT_EQ(links.size(), 2u);
  for (const double rate : {links[0].up_bytes_per_second, links[0].down_bytes_per_second}) {
    EXPECT_GT(rate, 0);
    EXPECT_LE(rate, 402e6);
  }
  for (const double rate : {links[1].up_bytes_per_second, links[1].down_bytes_per_second}) {
    EXPECT_GT(rate, 0);
    EXPECT_LE(rate, 1206e6);
  }
}

TEST(LinksTest, WhereMeasuringFailsRatesAreAssumedAndTheNextDeviceIsMeasured) {
  device::HostOptions broken;
  broken.fail_copy = [](uint64_t) { return true; };
  const auto links =
      MeasureLinks({DeviceWith(broken), DeviceWith({.bytes_per_second = 1200e6})}, kTestPatience);
  ASSERT_EQ(links.size(), 2u);
  EXPECT_EQ(links[0].up_bytes_per_second, core::LinkModel{}.up_bytes_per_second);
  EXPECT_EQ(links[0].down_bytes_per_second, core::LinkModel{}.down_bytes_per_second);
  EXPECT_LE(links[1].up_bytes_per_second, 1206e6);
}

TEST(LinksTest, AMediumIsMeasuredBothWaysAndItsFailureIsReported) {
  device::FakeMedium medium(core::MiB(6));
  const auto rates = MeasureMedium(medium);
  ASSERT_TRUE(rates.ok());
  EXPECT_GT(rates->read, 0);
  EXPECT_GT(rates->write, 0);
  medium.set_fault([](uint64_t) { return device::FakeMedium::Fault::kFails; });
  const auto failed = MeasureMedium(medium);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().message.find("the fake: transfer"), std::string::npos);
}

}  // namespace
}  // namespace ravenstore::daemon
