// What is the CUDA channels' and streams' own; conformance_test.cc has the rest.
#include "device/cuda_stream.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/device/fake_driver.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;

class CudaStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(gpu_->words().Add(*gpu_, page_.begin(), WordPage::kBytes));
    stream_ = WrapCudaStream(gpu_, nullptr).value();
  }
  void TearDown() override {
    stream_.reset();
    gpu_->words().Remove(*gpu_, page_.begin());
    EXPECT_EQ(fake_.context_errors(), 0);
  }
  bool Reaches(size_t i, uint64_t value) {
    return Eventually([&] {
      if (polled_ != nullptr) polled_->Poll();
      return page_[i].load(std::memory_order_acquire) >= value;
    });
  }

  const FakeDriver fake_;
  const std::shared_ptr<CudaGpu> gpu_ = fake_.Gpu();
  WordPage page_;
  std::unique_ptr<Stream> stream_;
  Channel* polled_ = nullptr;  // whose signals Reaches gives
};

TEST_F(CudaStreamTest, OnlyThePerThreadHandleMeansAnotherStreamInEveryThread) {
  const auto wrap = [&](CUstream handle) { return WrapCudaStream(gpu_, handle).value(); };
  EXPECT_FALSE(wrap(nullptr)->per_thread());
  EXPECT_FALSE(wrap(CU_STREAM_LEGACY)->per_thread());
  EXPECT_TRUE(wrap(CU_STREAM_PER_THREAD)->per_thread());
}

TEST_F(CudaStreamTest, ThePerThreadHandleActsOnTheCallingThreadsStream) {
  const auto shared = WrapCudaStream(gpu_, CU_STREAM_PER_THREAD).value();
  std::thread held([&] {
    ASSERT_OK(shared->Wait(&page_[0], 1));
    ASSERT_OK(shared->SignalAfter(&page_[1], 1));
  });
  held.join();
  ASSERT_OK(shared->Synchronize());  // of this thread's, which has nothing to do
  EXPECT_EQ(page_[1].load(), 0u);
  page_[0].store(1, std::memory_order_release);
  EXPECT_TRUE(Reaches(1, 1));
}

TEST_F(CudaStreamTest, WordsOutsideRegisteredPagesAreRefused) {
  Word mine{0};
  EXPECT_CODE(stream_->SignalAfter(&mine, 1), ErrorCode::kInvalidArgument);
  EXPECT_CODE(stream_->Wait(&mine, 1), ErrorCode::kInvalidArgument);
}

TEST_F(CudaStreamTest, ASignalWaitsForCopiesButNotCopiesForASignal) {
  const auto channel = OpenCudaChannel(gpu_);
  ASSERT_OK(channel);
  polled_ = channel->get();
  std::vector<char> from(4096, 1);
  std::vector<char> to(4096);
  fake_.hold_copies(1);
  ASSERT_OK((*channel)->Copy(to.data(), from.data(), Bytes(4096)));
  ASSERT_OK((*channel)->Signal(&page_[0], 1));
  // Another stream's round trip passes the held one.
  ASSERT_OK(stream_->SignalAfter(&page_[1], 1));
  ASSERT_TRUE(Reaches(1, 1));
  EXPECT_EQ(page_[0].load(), 0u);
  ASSERT_OK((*channel)->Health());
  fake_.hold_copies(0);
  ASSERT_TRUE(Reaches(0, 1));
  EXPECT_EQ(to, from);
}

TEST_F(CudaStreamTest, TheCallersContextStaysCurrent) {
  const auto other = fake_.Gpu(1);
  ASSERT_EQ(fake_.table->cuCtxSetCurrent(*other->Primary()), CUDA_SUCCESS);
  ASSERT_OK(stream_->SignalAfter(&page_[0], 1));
  ASSERT_OK(stream_->Synchronize());
  CUcontext current = nullptr;
  ASSERT_EQ(fake_.table->cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, *other->Primary());
  ASSERT_EQ(fake_.table->cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  ASSERT_TRUE(Reaches(0, 1));
}

TEST_F(CudaStreamTest, ARefusedCallNamesItself) {
  fake_.fail("cuStreamWriteValue64", 1, CUDA_ERROR_UNKNOWN);
  const Status refused = stream_->SignalAfter(&page_[0], 1);
  EXPECT_CODE(refused, ErrorCode::kDevice);
  EXPECT_EQ(refused.error().message.rfind("device 0: cuStreamWriteValue64: ", 0), 0u);
}

TEST_F(CudaStreamTest, ASignalAfterAllStreamsIsRefusedDuringACapture) {
  const auto all = WrapCudaStream(gpu_, AllStreams()).value();
  fake_.fail("cuCtxRecordEvent", 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_CODE(all->SignalAfter(&page_[0], 1), ErrorCode::kCapturing);
  ASSERT_OK(all->SignalAfter(&page_[0], 1));
  EXPECT_TRUE(Reaches(0, 1));
}

TEST_F(CudaStreamTest, ADriverWithoutContextEventsSaysSo) {
  auto old = std::make_shared<CudaDriver>(*fake_.table);
  old->ctx_record_event = nullptr;
  const auto gpu = std::make_shared<CudaGpu>(old, 0, 0, std::make_shared<CudaWords>());
  const auto all = WrapCudaStream(gpu, AllStreams());
  EXPECT_CODE(all, ErrorCode::kUnsupported);
  EXPECT_NE(all.error().message.find("12.5"), std::string::npos);
}

TEST_F(CudaStreamTest, TheLegacyStreamCountsAsCapturedDuringACapture) {
  fake_.fail("cuStreamIsCapturing", 1, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  const auto capturing = stream_->Capturing();
  ASSERT_OK(capturing);
  EXPECT_TRUE(*capturing);
}

TEST_F(CudaStreamTest, WhatIsNoStreamIsNotWrapped) {
  int nothing = 0;
  EXPECT_CODE(WrapCudaStream(gpu_, &nothing), ErrorCode::kDevice);
}

TEST_F(CudaStreamTest, AChannelThatCannotBeOpenedLeavesNothing) {
  fake_.fail("cuStreamCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CODE(OpenCudaChannel(gpu_), ErrorCode::kOutOfMemory);
  const auto channel = OpenCudaChannel(gpu_);
  ASSERT_OK(channel);
  fake_.fail("cuEventCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CODE((*channel)->Signal(&page_[0], 1), ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace ravenstore::device
