#include "interceptor/pool.h"

#include <gtest/gtest.h>

#include "interceptor/budgets.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/interceptor/fake_devices.h"

namespace ravenstore::interceptor {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBlock = 32 * kMiB;  // in which the fake's pools reserve

uint64_t lacked = 0;
bool TakeAll(int row, uint64_t bytes) {
  lacked = bytes;
  return HoldIfRoom(row, bytes);
}
bool Refuse(int, uint64_t bytes) {
  lacked = bytes;
  return false;
}

class PoolTest : public FakeDevices {
 protected:
  void SetUp() override {
    FakeDevices::SetUp();
    pool::ForgetInChild();
    lacked = 0;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    ASSERT_EQ(cuDeviceGetDefaultMemPool(&default_, 0), CUDA_SUCCESS);
    cuuint64_t all = ~cuuint64_t{0};
    ASSERT_EQ(cuMemPoolSetAttribute(default_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all),
              CUDA_SUCCESS);
    ASSERT_TRUE(pool::IsCurrent(0));
  }
  void TearDown() override {
    FakeCudaShrinkPools();
    ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  }
  // As the hooks do; the bytes stand for the job's.
  CUdeviceptr Allocate(uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_TRUE(pool::Reserve(0, bytes, TakeAll));
    EXPECT_EQ(cuMemAllocAsync(&address, bytes, nullptr), CUDA_SUCCESS);
    pool::RefreshUsage(0, 0);
    return address;
  }
  void Free(CUdeviceptr address, uint64_t bytes) {
    EXPECT_EQ(cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
    pool::RefreshUsage(0, bytes);
  }
  static uint64_t LeftOver() { return Kind(LegacyKind::kPool); }

  CUcontext context_ = nullptr;
  CUmemoryPool default_ = nullptr;
};

TEST_F(PoolTest, KnowsTheDevicesDefaultPoolsAndNoOther) {
  EXPECT_TRUE(pool::IsCurrent(0));
  EXPECT_EQ(pool::RowOf(default_), 0);
  CUmemPoolProps properties{};
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool own = nullptr;
  ASSERT_EQ(cuMemPoolCreate(&own, &properties), CUDA_SUCCESS);
  EXPECT_EQ(pool::RowOf(own), -1);
  ASSERT_EQ(cuDeviceSetMemPool(0, own), CUDA_SUCCESS);
  EXPECT_FALSE(pool::IsCurrent(0));
  ASSERT_EQ(cuMemPoolDestroy(own), CUDA_SUCCESS);
  EXPECT_TRUE(pool::IsCurrent(0));
  EXPECT_FALSE(pool::IsCurrent(-1));
  EXPECT_EQ(pool::RowOf(nullptr), -1);
}

TEST_F(PoolTest, WhatItReservesBeyondWhatWasAskedIsHeldAsThePools) {
  const CUdeviceptr address = Allocate(kMiB);
  EXPECT_EQ(LeftOver(), kBlock - kMiB);
  EXPECT_EQ(Used(), kBlock);
  Free(address, kMiB);
  EXPECT_EQ(LeftOver(), kBlock);
  EXPECT_EQ(Used(), kBlock);
}

TEST_F(PoolTest, WhatIsLeftOverServesFirst) {
  const CUdeviceptr first = Allocate(kMiB);
  EXPECT_EQ(lacked, kMiB);
  lacked = 0;
  const CUdeviceptr second = Allocate(kMiB);
  EXPECT_EQ(lacked, 0u) << "all of it was there";
  EXPECT_EQ(Used(), kBlock);
  const CUdeviceptr third = Allocate(kBlock);
  EXPECT_EQ(lacked, 2 * kMiB);
  EXPECT_EQ(Used(), 2 * kBlock);
  Free(first, kMiB);
  Free(second, kMiB);
  Free(third, kBlock);
}

TEST_F(PoolTest, ARefusalTakesNothing) {
  const CUdeviceptr address = Allocate(kMiB);
  EXPECT_FALSE(pool::Reserve(0, kBlock, Refuse));
  EXPECT_EQ(lacked, kMiB);
  EXPECT_EQ(LeftOver(), kBlock - kMiB);
  EXPECT_EQ(Used(), kBlock);
  Free(address, kMiB);
}

TEST_F(PoolTest, GivesWhatIsLeftOverBackToTheDevice) {
  Free(Allocate(kMiB), kMiB);
  ASSERT_EQ(LeftOver(), kBlock);
  pool::Trim(0, kBlock);
  EXPECT_EQ(LeftOver(), 0u);
  EXPECT_EQ(Used(), 0u);
  EXPECT_EQ(FakeCudaUsed(0), 0u);
}

TEST_F(PoolTest, MakesRoomOnlyWhereSomethingIsLeftOver) {
  Row().visible = kBlock;
  EXPECT_FALSE(pool::MakeRoom(0, kBlock));
  Free(Allocate(kMiB), kMiB);
  EXPECT_TRUE(pool::MakeRoom(0, kBlock));
  EXPECT_EQ(Used(), 0u);
}

TEST_F(PoolTest, NoticesWhatAPoolGaveBackByItself) {
  Free(Allocate(kMiB), kMiB);
  FakeCudaShrinkPools();
  EXPECT_EQ(LeftOver(), kBlock);
  pool::RefreshAll();
  EXPECT_EQ(LeftOver(), 0u);
}

}  // namespace
}  // namespace ravenstore::interceptor
