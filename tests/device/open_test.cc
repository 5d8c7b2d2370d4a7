#include "device/open.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

TEST(OpenDevicesTest, HostOpensSimulatedDevices) {
  const auto devices = OpenDevices("host", {.count = 2});
  ASSERT_OK(devices);
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[1]->info().uuid, "HOST-1");
}

TEST(OpenDevicesTest, CudaWithoutADriverIsUnavailable) {
  setenv("RAVENSTORE_LIBCUDA", "libno-such-driver.so", 1);
  EXPECT_CODE(OpenDevices("cuda", {}), core::ErrorCode::kUnavailable);
}

TEST(OpenDevicesTest, AutoFallsBackToSimulatedDevices) {
  setenv("RAVENSTORE_LIBCUDA", "libno-such-driver.so", 1);
  const auto devices = OpenDevices("auto", {});
  ASSERT_OK(devices);
  EXPECT_EQ((*devices)[0]->info().uuid, "HOST-0");
}

TEST(OpenDevicesTest, AnotherNameIsRefusedByName) {
  const auto devices = OpenDevices("rocm", {});
  EXPECT_CODE(devices, core::ErrorCode::kInvalidArgument);
  EXPECT_NE(devices.error().message.find("rocm"), std::string::npos);
}

}  // namespace
}  // namespace ravenstore::device
