#include "elastic/pace.h"

#include <array>
#include <deque>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

class PaceTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(driver_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), 0); }
  void TearDown() override { Hold(false); }
  static void Hold(bool hold) { Fake<void(int)>("FakeCudaHoldCopies")(hold ? 1 : 0); }
  // A copy on the stream, which is done once copies are not held.
  void Work() {
    // For good: some end after their test.
    static auto* all = new std::deque<std::array<uint64_t, 2>>;
    const auto at = reinterpret_cast<CUdeviceptr>(all->emplace_back().data());
    EXPECT_EQ(driver_.copy_async(at, at + 8, 8, stream_), CUDA_SUCCESS);
  }
  void Synchronize() { Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(stream_); }

  FakeContext context_;
  Driver driver_ = *LoadDriver(&FakeFunction);
  CUstream stream_ = nullptr;
  Pace pace_{&driver_};
};

TEST_F(PaceTest, AStretchIsFromTheCallBehindOneEndToTheNext) {
  for (const int64_t call : {3, 7, 12}) {
    Work();
    pace_.Ends(stream_, call);
  }
  Synchronize();
  const auto first = pace_.Next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->from, 4);
  EXPECT_EQ(first->to, 8);
  EXPECT_GE(first->took, core::Duration{0});
  const auto second = pace_.Next();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->from, 8);
  EXPECT_EQ(second->to, 13);
  EXPECT_FALSE(pace_.Next());
  EXPECT_EQ(pace_.passed(), 13);
}

TEST_F(PaceTest, WhatIsUnderWayHasNotPassed) {
  Work();
  pace_.Ends(stream_, 3);
  Synchronize();
  EXPECT_FALSE(pace_.Next()) << "nobody knows when it began";
  EXPECT_EQ(pace_.passed(), 4);
  EXPECT_FALSE(pace_.under_way());
  Hold(true);
  Work();
  pace_.Ends(stream_, 7);
  pace_.Ends(stream_, 9);
  EXPECT_FALSE(pace_.Next());
  EXPECT_EQ(pace_.passed(), 4);
  EXPECT_EQ(pace_.under_way(), 7);
  Hold(false);
  Synchronize();
  EXPECT_TRUE(pace_.Next());
  EXPECT_TRUE(pace_.Next());
  EXPECT_EQ(pace_.passed(), 10);
}

TEST_F(PaceTest, AStreamThatIsBehindHoldsNothingUp) {
  CUstream other = nullptr;
  ASSERT_EQ(driver_.stream_create(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  Hold(true);
  pace_.Ends(other, 1);
  Work();
  pace_.Ends(stream_, 3);
  pace_.Ends(other, 7);
  Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(other);
  const auto stretch = pace_.Next();
  ASSERT_TRUE(stretch);
  EXPECT_EQ(stretch->from, 2);
  EXPECT_EQ(stretch->to, 8);
  EXPECT_FALSE(pace_.under_way());
  Hold(false);
  Synchronize();
  EXPECT_FALSE(pace_.Next());
  EXPECT_EQ(pace_.passed(), 8);
}

TEST_F(PaceTest, ACallThatAnotherThreadEnqueuedLateEndsNothing) {
  Hold(true);
  Work();
  pace_.Ends(stream_, 7);
  pace_.Ends(stream_, 5);
  Hold(false);
  Synchronize();
  EXPECT_FALSE(pace_.Next());
  EXPECT_EQ(pace_.passed(), 8);
  pace_.Ends(stream_, 6);
  EXPECT_FALSE(pace_.under_way());
}

TEST_F(PaceTest, NothingIsRecordedOnAStreamThatIsCaptured) {
  ASSERT_EQ(Fake<decltype(cuStreamBeginCapture)>("cuStreamBeginCapture_v2")(
                stream_, CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_SUCCESS);
  pace_.Ends(stream_, 3);
  EXPECT_FALSE(pace_.under_way());
  CUgraph graph = nullptr;
  EXPECT_EQ(Fake<decltype(cuStreamEndCapture)>("cuStreamEndCapture")(stream_, &graph),
            CUDA_SUCCESS);
  pace_.Ends(stream_, 4);
  EXPECT_TRUE(pace_.under_way());
}

TEST_F(PaceTest, ADriverThatCannotMeasureIsNotAsked) {
  driver_.elapsed = nullptr;
  pace_.Ends(stream_, 3);
  EXPECT_FALSE(pace_.under_way());
  EXPECT_FALSE(pace_.Next());
}

}  // namespace
}  // namespace ravenstore::elastic
