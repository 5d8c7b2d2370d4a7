#include "interceptor/account.h"

#include <gtest/gtest.h>

#include "interceptor/backing.h"
#include "interceptor/budgets.h"
#include "interceptor/ledger.h"
#include "interceptor/pool.h"
#include "tests/interceptor/fake_devices.h"

namespace ravenstore::interceptor {
namespace {

class AccountTest : public FakeDevices {
 protected:
  void SetUp() override {
    FakeDevices::SetUp();
    pool::ForgetInChild();
    ledger.Reset();
  }
  static Entry Memory(uint64_t bytes, const Backing* backing = nullptr) {
    Entry entry;
    entry.key = 0x1000;
    entry.row = 0;
    entry.bytes = bytes;
    entry.backing = backing;
    return entry;
  }
};

TEST_F(AccountTest, WhatIsReservedCountsAndWhatIsCommittedIsOfItsKind) {
  ASSERT_TRUE(Reserve(0, 60));
  EXPECT_EQ(Used(), 60u);
  EXPECT_EQ(Kind(LegacyKind::kDevice), 0u);
  ASSERT_TRUE(Commit(Memory(60)));
  EXPECT_EQ(Used(), 60u);
  EXPECT_EQ(Kind(LegacyKind::kDevice), 60u);
  Entry entry;
  ASSERT_TRUE(ledger.Take(Space::kMemory, 0x1000, &entry));
  Uncharge(entry);
  EXPECT_EQ(Used(), 0u);
  EXPECT_EQ(Kind(LegacyKind::kDevice), 0u);
  ChargeAgain(entry);
  EXPECT_EQ(Used(), 60u);
  EXPECT_EQ(Kind(LegacyKind::kDevice), 60u);
}

TEST_F(AccountTest, ThePeakIsTheLargestThatWasHeldNotWhatWasTried) {
  ASSERT_TRUE(Reserve(0, 60));
  EXPECT_EQ(Row().peak, 0u);
  ASSERT_TRUE(Commit(Memory(60)));
  ASSERT_TRUE(Reserve(0, 40));
  Unreserve(0, 40);
  Entry entry;
  ASSERT_TRUE(ledger.Take(Space::kMemory, 0x1000, &entry));
  Uncharge(entry);
  EXPECT_EQ(Row().peak, 60u);
  Gauge(0, LegacyKind::kPool, 70);
  EXPECT_EQ(Row().peak, 70u);
  NotePeak(0, 80);
  EXPECT_EQ(Row().peak, 80u);
}

TEST_F(AccountTest, OverABudgetNothingIsReserved) {
  Row().visible = 100;
  EXPECT_FALSE(Reserve(0, 101));
  EXPECT_TRUE(Reserve(0, 60));
  EXPECT_FALSE(Reserve(0, 41));
  EXPECT_EQ(Used(), 60u);
  Unreserve(0, 60);
  EXPECT_EQ(Used(), 0u);
  EXPECT_TRUE(Reserve(-1, 101)) << "of no device that is known";
  Unreserve(-1, 101);
}

TEST_F(AccountTest, WhatTheLedgerDoesNotTakeIsNotHeld) {
  ASSERT_TRUE(Reserve(0, 60));
  ASSERT_TRUE(Commit(Memory(60)));
  ASSERT_TRUE(Reserve(0, 7));
  EXPECT_FALSE(Commit(Memory(7))) << "the address is known";
  EXPECT_EQ(Used(), 60u);
  EXPECT_EQ(Kind(LegacyKind::kDevice), 60u);
}

TEST_F(AccountTest, WhatABackingServesIsShownAsServedIfItIsCounted) {
  Backing counted{};
  counted.counted = true;
  ASSERT_TRUE(Reserve(0, 60));
  ASSERT_TRUE(Commit(Memory(60, &counted)));
  EXPECT_EQ(Row().served.load(), 60u);
  Entry entry;
  ASSERT_TRUE(ledger.Take(Space::kMemory, 0x1000, &entry));
  Uncharge(entry);
  EXPECT_EQ(Row().served.load(), 0u);
  const Backing by_itself{};
  ASSERT_TRUE(Commit(Memory(60, &by_itself)));
  EXPECT_EQ(Used(), 0u);
  EXPECT_EQ(Kind(LegacyKind::kDevice), 0u);
}

// The pool gives up what it has left over before an allocation is refused.
TEST_F(AccountTest, APoolsLeftoversMakeRoom) {
  constexpr uint64_t kBlock = uint64_t{32} << 20;  // in which the fake's pools reserve
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  CUmemoryPool pool = nullptr;
  cuuint64_t all = ~cuuint64_t{0};
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all), CUDA_SUCCESS);
  ASSERT_TRUE(pool::IsCurrent(0));
  ASSERT_TRUE(pool::Reserve(0, 5, Reserve));
  ASSERT_EQ(cuMemAllocAsync(&address, 5, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  pool::RefreshUsage(0, 5);
  ASSERT_EQ(Used(), kBlock);
  Row().visible = kBlock;
  EXPECT_TRUE(Reserve(0, kBlock));
  EXPECT_EQ(Used(), kBlock);
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
}

}  // namespace
}  // namespace ravenstore::interceptor
