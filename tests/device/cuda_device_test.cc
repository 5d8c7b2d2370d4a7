// What is the CUDA devices' own; conformance_test.cc has the rest.
#include "device/cuda_device.h"

#include <gtest/gtest.h>

#include "tests/device/fake_driver.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;
using core::GiB;
using core::MiB;

TEST(CudaDeviceTest, DevicesAreDescribedAsTheDriverPrintsThem) {
  const FakeDriver fake;
  const auto devices = OpenCudaDevices(fake.table);
  ASSERT_OK(devices);
  ASSERT_EQ(devices->size(), 2u);
  const DeviceInfo& info = (*devices)[1]->info();
  EXPECT_EQ(info.uuid, "GPU-10111213-1415-1617-1819-1a1b1c1d1e01");
  EXPECT_EQ(info.name, "Fake GPU 1");
  EXPECT_EQ(info.total, GiB(1));
  EXPECT_EQ(info.numa_node, 0);
  EXPECT_EQ((*devices)[1]->granularity(), MiB(2));
}

TEST(CudaDeviceTest, LookingAtDevicesGivesNoneAContext) {
  const FakeDriver fake;
  const auto devices = OpenCudaDevices(fake.table);
  ASSERT_OK(devices);
  EXPECT_EQ(fake.contexts(), 0);
  ASSERT_OK((*devices)[1]->FreeBytes());
  EXPECT_EQ(fake.contexts(), 1);
}

TEST(CudaDeviceTest, WithoutAGpuItIsUnavailable) {
  const FakeDriver fake;
  fake.fail("cuInit", 1, CUDA_ERROR_NO_DEVICE);
  EXPECT_CODE(OpenCudaDevices(fake.table), ErrorCode::kUnavailable);
}

TEST(CudaDeviceTest, ABrokenDriverIsNotAnAbsentOne) {
  const FakeDriver fake;
  fake.fail("cuInit", 1, CUDA_ERROR_UNKNOWN);
  const auto devices = OpenCudaDevices(fake.table);
  EXPECT_CODE(devices, ErrorCode::kDevice);
  EXPECT_NE(devices.error().message.find("cuInit"), std::string::npos);
}

TEST(CudaDeviceTest, TheEndOfARegistrationForgetsTheWords) {
  const FakeDriver fake;
  const auto devices = OpenCudaDevices(fake.table);
  ASSERT_OK(devices);
  Device& device = *(*devices)[0];
  WordPage page;
  const auto stream = device.WrapStream(nullptr);
  ASSERT_OK(stream);
  {
    const auto registration = device.RegisterWords(page.begin(), WordPage::kBytes);
    ASSERT_OK(registration);
    ASSERT_OK((*stream)->SignalAfter(&page[0], 1));
    ASSERT_TRUE(Eventually([&] { return page[0].load(std::memory_order_acquire) == 1; }));
  }
  EXPECT_CODE((*stream)->SignalAfter(&page[0], 2), ErrorCode::kInvalidArgument);
  EXPECT_EQ(fake.context_errors(), 0);
}

}  // namespace
}  // namespace ravenstore::device
