#include "interceptor/devices.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "tests/interceptor/fake_devices.h"

namespace ravenstore::interceptor {
namespace {

using DevicesTest = FakeDevices;

TEST_F(DevicesTest, EachDeviceHasARowByWhicheverNameItIsAsked) {
  ASSERT_EQ(Page()->rows, 2u);
  for (int row = 0; row < 2; ++row) {
    EXPECT_EQ(RowOf(DeviceOf(row)), row);
    EXPECT_EQ(RowOfUuid(Row(row).uuid), row);
    EXPECT_EQ(std::string(Row(row).uuid).substr(0, 4), "GPU-");
  }
  EXPECT_EQ(RowOf(CUdevice{2}), -1);
  EXPECT_EQ(RowOf(CUdevice{-1}), -1);
  EXPECT_EQ(RowOfUuid("GPU-other"), -1);
}

TEST_F(DevicesTest, ThePageIsAMemfdUntilTheProcessForks) {
  EXPECT_GE(PageDescriptor(), 0);
  EXPECT_EQ(ElasticPageDescriptor(), -1) << "the mode is not elastic";
  EXPECT_EQ(ElasticPageRow(0), nullptr);
  Row().used = 5;
  ForgetDevicesInChild();
  EXPECT_EQ(PageDescriptor(), -1);
  EXPECT_EQ(Page()->rows, 0u);
  EXPECT_EQ(RowOf(CUdevice{0}), -1);
  ASSERT_TRUE(FindDevices());
  EXPECT_EQ(Used(), 0u);
}

TEST_F(DevicesTest, AJobsOwnBudgetStandsInEachRow) {
  ::setenv("RAVENSTORE_BUDGET", "3GiB", 1);
  ForgetDevicesInChild();
  ASSERT_TRUE(FindDevices());
  ::unsetenv("RAVENSTORE_BUDGET");
  EXPECT_EQ(Row(0).asked.load(), uint64_t{3} << 30);
  EXPECT_EQ(Row(1).asked.load(), uint64_t{3} << 30);
}

TEST_F(DevicesTest, TheCurrentRowIsTheContextsAndAStreamsItsOwn) {
  EXPECT_EQ(CurrentRow(), -1);
  CUcontext contexts[2] = {};
  CUstream stream = nullptr;
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cuDevicePrimaryCtxRetain(&contexts[i], i), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(contexts[1]), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  EXPECT_EQ(CurrentRow(), 1);
  ASSERT_EQ(cuCtxSetCurrent(contexts[0]), CUDA_SUCCESS);
  EXPECT_EQ(CurrentRow(), 0);
  EXPECT_EQ(RowOf(stream), 1);
  EXPECT_EQ(RowOf(CUstream{nullptr}), 0);
  EXPECT_EQ(CurrentContext(), contexts[0]) << "as it was";
  EXPECT_EQ(ContextOf(stream), contexts[1]);
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(i), CUDA_SUCCESS);
}

}  // namespace
}  // namespace ravenstore::interceptor
