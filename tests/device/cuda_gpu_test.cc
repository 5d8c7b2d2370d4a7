#include "device/cuda_gpu.h"

#include <gtest/gtest.h>

#include "tests/device/fake_driver.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;

TEST(CudaGpuTest, AContextIsMadeAtTheFirstUseAndReleasedAtTheEnd) {
  const FakeDriver fake;
  {
    const auto gpu = fake.Gpu();
    EXPECT_EQ(fake.contexts(), 0);
    const auto context = gpu->Primary();
    ASSERT_OK(context);
    EXPECT_EQ(*gpu->Primary(), *context);
    EXPECT_EQ(fake.contexts(), 1);
  }
  EXPECT_EQ(fake.contexts(), 0);
}

TEST(CudaGpuTest, AContextThatCannotBeMadeIsTriedAgain) {
  const FakeDriver fake;
  const auto gpu = fake.Gpu();
  fake.fail("cuDevicePrimaryCtxRetain", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CODE(gpu->Primary(), ErrorCode::kOutOfMemory);
  ASSERT_OK(gpu->Primary());
}

TEST(CudaScopeTest, LeavesTheCallersContextAsItWas) {
  const FakeDriver fake;
  const auto mine = fake.Gpu(0);
  const auto callers = fake.Gpu(1);
  const auto current = [&] {
    CUcontext context = nullptr;
    fake.table->cuCtxGetCurrent(&context);
    return context;
  };
  ASSERT_EQ(fake.table->cuCtxSetCurrent(*callers->Primary()), CUDA_SUCCESS);
  {
    const CudaScope scope(*fake.table, *mine->Primary());
    EXPECT_EQ(current(), *mine->Primary());
    const CudaScope same(*fake.table, *mine->Primary());
  }
  EXPECT_EQ(current(), *callers->Primary());
  ASSERT_EQ(fake.table->cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
}

TEST(CudaWordsTest, FindsWordsOfRegisteredPagesOnly) {
  const FakeDriver fake;
  const auto gpu = fake.Gpu();
  WordPage page;
  WordPage other;
  EXPECT_CODE(gpu->words().Find(&page[0]), ErrorCode::kInvalidArgument);
  ASSERT_OK(gpu->words().Add(*gpu, page.begin(), WordPage::kBytes));
  const auto first = gpu->words().Find(&page[0]);
  const auto last = gpu->words().Find(&page[511]);
  ASSERT_OK(first);
  ASSERT_OK(last);
  EXPECT_EQ(*last, *first + 511 * sizeof(Word));
  EXPECT_CODE(gpu->words().Find(&page[512]), ErrorCode::kInvalidArgument);
  EXPECT_CODE(gpu->words().Find(&other[0]), ErrorCode::kInvalidArgument);
  gpu->words().Remove(*gpu, page.begin());
  EXPECT_CODE(gpu->words().Find(&page[0]), ErrorCode::kInvalidArgument);
}

TEST(CudaWordsTest, APageIsRegisteredOnceForAllItsUsers) {
  const FakeDriver fake;
  const auto words = std::make_shared<CudaWords>();
  CudaGpu first(fake.table, 0, 0, words);
  CudaGpu second(fake.table, 1, 1, words);
  WordPage page;
  ASSERT_OK(words->Add(first, page.begin(), WordPage::kBytes));
  ASSERT_OK(words->Add(second, page.begin(), WordPage::kBytes));
  words->Remove(first, page.begin());
  ASSERT_OK(words->Find(&page[0]));
  words->Remove(second, page.begin());
  EXPECT_CODE(words->Find(&page[0]), ErrorCode::kInvalidArgument);
  ASSERT_OK(words->Add(first, page.begin(), WordPage::kBytes));
  words->Remove(first, page.begin());
}

TEST(CudaWordsTest, AHalfDoneRegistrationIsUndone) {
  const FakeDriver fake;
  const auto gpu = fake.Gpu();
  WordPage page;
  fake.fail("cuMemHostGetDevicePointer", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_CODE(gpu->words().Add(*gpu, page.begin(), WordPage::kBytes), ErrorCode::kDevice);
  ASSERT_OK(gpu->words().Add(*gpu, page.begin(), WordPage::kBytes));
  gpu->words().Remove(*gpu, page.begin());
}

}  // namespace
}  // namespace ravenstore::device
