#include "daemon/links.h"

#include <gtest/gtest.h>

namespace ravenstore::daemon {
namespace {

std::shared_ptr<device::Device> DeviceWith(const device::HostOptions& options) {
  return device::OpenHostDevices(options).front();
}

TEST(LinksTest, EachDeviceHasTheRatesOfItsOwnLink) {
  const auto links = MeasureLinks(
      {DeviceWith({.bytes_per_second = 400e6}), DeviceWith({.bytes_per_second = 1200e6})});
  ASSERT_EQ(links.size(), 2u);
  for (const double rate : {links[0].up_bytes_per_second, links[0].down_bytes_per_second}) {
    EXPECT_GT(rate, 100e6);
    EXPECT_LE(rate, 402e6);
  }
  for (const double rate : {links[1].up_bytes_per_second, links[1].down_bytes_per_second}) {
    EXPECT_GT(rate, 402e6);
    EXPECT_LE(rate, 1206e6);
  }
}

TEST(LinksTest, WhereMeasuringFailsRatesAreAssumedAndTheNextDeviceIsMeasured) {
  device::HostOptions broken;
  broken.fail_copy = [](uint64_t) { return true; };
  const auto links = MeasureLinks({DeviceWith(broken), DeviceWith({.bytes_per_second = 1200e6})});
  ASSERT_EQ(links.size(), 2u);
  EXPECT_EQ(links[0].up_bytes_per_second, core::LinkModel{}.up_bytes_per_second);
  EXPECT_EQ(links[0].down_bytes_per_second, core::LinkModel{}.down_bytes_per_second);
  EXPECT_LE(links[1].up_bytes_per_second, 1206e6);
}

}  // namespace
}  // namespace ravenstore::daemon
