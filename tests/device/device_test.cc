#include "device/device.h"

#include <gtest/gtest.h>

namespace ravenstore::device {
namespace {

TEST(FindByUuidTest, FindsTheDeviceWithThatUuidOnly) {
  const Devices devices = OpenHostDevices({.count = 3});
  EXPECT_EQ(FindByUuid(devices, "HOST-0"), devices[0]);
  EXPECT_EQ(FindByUuid(devices, "HOST-2"), devices[2]);
  EXPECT_EQ(FindByUuid(devices, "HOST-3"), nullptr);
  EXPECT_EQ(FindByUuid(devices, ""), nullptr);
  EXPECT_EQ(FindByUuid({}, "HOST-0"), nullptr);
}

}  // namespace
}  // namespace ravenstore::device
