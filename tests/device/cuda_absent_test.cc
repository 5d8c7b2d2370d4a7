// The CUDA backend of a build without the toolkit; linked in place of the real one.
#include <gtest/gtest.h>

#include "device/device.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

TEST(CudaAbsentTest, SaysHowItWasBuilt) {
  const auto devices = OpenCudaDevices();
  EXPECT_CODE(devices, core::ErrorCode::kUnavailable);
  EXPECT_EQ(devices.error().message, "built without the CUDA toolkit");
}

}  // namespace
}  // namespace ravenstore::device
