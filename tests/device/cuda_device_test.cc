// What is the CUDA devices' own; conformance_test.cc has the rest.
#include "device/cuda_device.h"

#include <gtest/gtest.h>

#include "tests/device/fake_driver.h"
#include "tests/device/fake_nvml_library.h"
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

// With NVML's word.
class CudaMemoryUseTest : public testing::Test {
 protected:
  void SetUp() override { setenv("RAVENSTORE_LIBNVML", FakeNvmlLibrary().c_str(), 1); }
  void TearDown() override { unsetenv("RAVENSTORE_LIBNVML"); }

  const FakeDriver driver_;
  FakeNvmlControls& nvml_ = FakeNvml();
  const Devices devices_ = OpenCudaDevices(driver_.table).value();
  Device& device_ = *devices_[0];
};

TEST_F(CudaMemoryUseTest, ItIsReadWithoutAContext) {
  nvml_.free = {GiB(30).count()};
  nvml_.processes = {{7, GiB(2).count()}};
  const auto use = device_.ReadMemoryUse();
  ASSERT_OK(use);
  EXPECT_EQ(use->free, GiB(30));
  EXPECT_EQ(use->context, Bytes{0});
  const auto processes = device_.ReadProcesses();
  ASSERT_OK(processes);
  ASSERT_EQ(processes->size(), 1u);
  EXPECT_EQ(processes->front().pid, 7u);
  nvml_.utilization = 87;
  EXPECT_EQ(device_.ReadUtilization().value(), 87u);
  EXPECT_EQ(driver_.contexts(), 0);
}

TEST_F(CudaMemoryUseTest, WhatItsContextTakesIsMeasuredAsItIsMade) {
  // At the first look; before the context, and behind it; at the second look.
  nvml_.free = {GiB(30).count(), GiB(20).count(), GiB(20).count() - MiB(500).count(),
                GiB(10).count()};
  ASSERT_OK(device_.ReadMemoryUse());
  ASSERT_OK(device_.FreeBytes());
  EXPECT_EQ(driver_.contexts(), 1);
  const auto use = device_.ReadMemoryUse();
  ASSERT_OK(use);
  EXPECT_EQ(use->context, MiB(500));
  EXPECT_EQ(use->free, GiB(10));
}

TEST_F(CudaMemoryUseTest, WhatOthersTakeMeanwhileIsNoContext) {
  nvml_.free = {GiB(30).count(), GiB(20).count(), GiB(1).count()};
  ASSERT_OK(device_.ReadMemoryUse());
  ASSERT_OK(device_.FreeBytes());
  EXPECT_EQ(device_.ReadMemoryUse()->context, GiB(2)) << "no context takes more";
  nvml_.free = {GiB(1).count(), GiB(1).count(), GiB(20).count()};
  Device& other = *devices_[1];
  ASSERT_OK(other.ReadMemoryUse());
  ASSERT_OK(other.FreeBytes());
  EXPECT_EQ(other.ReadMemoryUse()->context, Bytes{0}) << "others gave memory back";
}

TEST_F(CudaMemoryUseTest, WhereNvmlDoesNotKnowTheGpuItsContextIsAsked) {
  nvml_.result = 6;
  EXPECT_CODE(device_.ReadMemoryUse(), ErrorCode::kDevice);
  EXPECT_EQ(driver_.contexts(), 0);
  const auto free = device_.FreeBytes();
  const auto use = device_.ReadMemoryUse();
  ASSERT_OK(use);
  EXPECT_EQ(use->free, *free);
}

TEST_F(CudaMemoryUseTest, WithoutNvmlOnlyAContextIsAsked) {
  setenv("RAVENSTORE_LIBNVML", "libno-such-nvml.so", 1);
  EXPECT_CODE(device_.ReadMemoryUse(), ErrorCode::kUnavailable);
  EXPECT_CODE(device_.ReadProcesses(), ErrorCode::kUnavailable);
  EXPECT_CODE(device_.ReadUtilization(), ErrorCode::kUnavailable);
  EXPECT_EQ(driver_.contexts(), 0);
  const auto free = device_.FreeBytes();
  const auto use = device_.ReadMemoryUse();
  ASSERT_OK(use);
  EXPECT_EQ(use->free, *free);
  EXPECT_EQ(use->context, Bytes{0});
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
