#include "device/cuda_gpu.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

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

// Two GPUs, of which one begins to use a page while the driver registers or unregisters it for the
// other.
class CudaWordsRaceTest : public testing::Test {
 protected:
  CudaWordsRaceTest() {
    real_ = fake_.table.get();
    begun_ = rivals_ = tried_ = 0;
    slow_->cuDevicePrimaryCtxRetain = [](CUcontext* context, CUdevice device) {
      // By then the rival has seen that the page is not registered.
      if (device == 1) ++rivals_;
      return real_->cuDevicePrimaryCtxRetain(context, device);
    };
  }
  static void AwaitRival() {
    ++begun_;
    while (rivals_ == 0) std::this_thread::yield();
  }
  // Adds the page for the second GPU once a call of the first one's awaits its rival.
  std::thread Rival() {
    return std::thread([this] {
      while (begun_ == 0) std::this_thread::yield();
      ASSERT_OK(words_->Add(second_, page_.begin(), WordPage::kBytes));
    });
  }

  // The driver's functions are plain pointers.
  static inline const CudaDriver* real_ = nullptr;
  static inline std::atomic<int> begun_;   // calls that await a rival
  static inline std::atomic<int> rivals_;  // on their way
  static inline std::atomic<int> tried_;   // registrations

  const FakeDriver fake_;
  const std::shared_ptr<CudaDriver> slow_ = std::make_shared<CudaDriver>(*fake_.table);
  const std::shared_ptr<CudaWords> words_ = std::make_shared<CudaWords>();
  CudaGpu first_{slow_, 0, 0, words_};
  CudaGpu second_{slow_, 1, 1, words_};
  WordPage page_;
};

TEST_F(CudaWordsRaceTest, GpusMayBeginToUseAPageTogether) {
  slow_->cuMemHostRegister = [](void* begin, size_t bytes, unsigned int flags) {
    AwaitRival();
    return real_->cuMemHostRegister(begin, bytes, flags);
  };
  std::thread rival = Rival();
  ASSERT_OK(words_->Add(first_, page_.begin(), WordPage::kBytes));
  rival.join();
  words_->Remove(first_, page_.begin());
  ASSERT_OK(words_->Find(&page_[0]));
  words_->Remove(second_, page_.begin());
}

TEST_F(CudaWordsRaceTest, AGpuMayBeginToUseAPageThatAnotherLeaves) {
  slow_->cuMemHostRegister = [](void* begin, size_t bytes, unsigned int flags) {
    const CUresult result = real_->cuMemHostRegister(begin, bytes, flags);
    ++tried_;
    return result;
  };
  slow_->cuMemHostUnregister = [](void* begin) {
    AwaitRival();
    // A rival that does not wait for us gets there soon.
    for (int look = 0; look < 10'000 && tried_ < 2; ++look) std::this_thread::yield();
    return real_->cuMemHostUnregister(begin);
  };
  ASSERT_OK(words_->Add(first_, page_.begin(), WordPage::kBytes));
  std::thread rival = Rival();
  words_->Remove(first_, page_.begin());
  rival.join();
  ASSERT_OK(words_->Find(&page_[0]));
  slow_->cuMemHostUnregister = real_->cuMemHostUnregister;
  words_->Remove(second_, page_.begin());
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
