#include "elastic/streams.h"

#include <array>
#include <deque>
#include <thread>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

class StreamsTest : public testing::Test {
 protected:
  void TearDown() override { Hold(false); }
  static void Hold(bool hold) { Fake<void(int)>("FakeCudaHoldCopies")(hold ? 1 : 0); }
  CUstream Make() {
    CUstream stream = nullptr;
    RAVEN_CHECK(driver_.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return stream;
  }
  // A copy on the stream, which is done once copies are not held.
  Point Work(CUstream stream) {
    // Of its own, as streams run concurrently, and for good: some end after their test.
    static auto* all = new std::deque<std::array<uint64_t, 2>>;
    auto& words = all->emplace_back();
    const auto at = reinterpret_cast<CUdeviceptr>(words.data());
    EXPECT_EQ(driver_.copy_async(at, at + 8, 8, stream), CUDA_SUCCESS);
    return streams_.Enqueued(stream);
  }
  bool Passes(const Point& point) {
    return Eventually([&] {
      streams_.Look();
      return streams_.Passed(point);
    });
  }

  FakeContext context_;
  Driver driver_ = *LoadDriver(&FakeFunction);
  Streams streams_{&driver_};
};

TEST_F(StreamsTest, APointPassesOnceItsStreamHasComeSoFar) {
  const CUstream stream = Make();
  Hold(true);
  const Point first = Work(stream);
  EXPECT_FALSE(streams_.Passed(first));
  Hold(false);
  EXPECT_TRUE(Passes(first));
  Hold(true);
  const Point second = Work(stream);
  EXPECT_TRUE(streams_.Passed(first));
  EXPECT_FALSE(streams_.Passed(second));
}

TEST_F(StreamsTest, StreamsPassEachForItself) {
  const CUstream held = Make();
  const CUstream other = Make();
  Hold(true);
  const Point waits = Work(held);
  const Point nothing = streams_.Enqueued(other);
  EXPECT_TRUE(Passes(nothing));
  EXPECT_FALSE(streams_.Passed(waits));
  EXPECT_TRUE(streams_.Passed(Point{}));
}

// What a stream waits for is no call of its own.
TEST_F(StreamsTest, APointOnEachStreamIsBehindWhatTheStreamWaitsFor) {
  const CUstream held = Make();
  const CUstream waits = Make();
  const Point before = streams_.Enqueued(waits);
  ASSERT_TRUE(Passes(before));
  Hold(true);
  Work(held);
  CUevent event = nullptr;
  ASSERT_EQ(driver_.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(driver_.event_record(event, held), CUDA_SUCCESS);
  ASSERT_EQ(Fake<decltype(cuStreamWaitEvent)>("cuStreamWaitEvent")(waits, event, 0), CUDA_SUCCESS);
  const auto points = streams_.EnqueuedOnAll();
  ASSERT_EQ(points.size(), 2u);
  for (const Point& point : points) EXPECT_FALSE(streams_.Passed(point));
  Hold(false);
  for (const Point& point : points) EXPECT_TRUE(Passes(point));
}

TEST_F(StreamsTest, ADestroyedStreamsPointsPassAndItsHandleBeginsAnew) {
  const CUstream stream = Make();
  Hold(true);
  const Point last = Work(stream);
  streams_.Gone(stream);
  Fake<decltype(cuStreamDestroy)>("cuStreamDestroy_v2")(stream);
  EXPECT_FALSE(streams_.Passed(last));
  Hold(false);
  EXPECT_TRUE(Passes(last));
  const CUstream next = Make();
  Hold(true);
  const Point later = Work(next);
  EXPECT_TRUE(streams_.Passed(last));
  EXPECT_FALSE(streams_.Passed(later));
}

TEST_F(StreamsTest, AThreadsOwnStreamPassesForOthersToSee) {
  Point point;
  std::thread([&] {
    context_.MakeCurrent();
    point = Work(CU_STREAM_PER_THREAD);
  }).join();
  EXPECT_TRUE(Passes(point));
  const Point own = Work(CU_STREAM_PER_THREAD);
  EXPECT_NE(own.stream, point.stream);
}

TEST_F(StreamsTest, TheDriverIsAskedOnceALookHoweverManyPointsThereAre) {
  const CUstream stream = Make();
  Hold(true);
  std::vector<Point> points;
  for (int i = 0; i < 10; ++i) points.push_back(Work(stream));
  EXPECT_FALSE(streams_.Passed(points[9]));  // an event is behind all
  Hold(false);
  Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(stream);
  for (const Point& point : points) EXPECT_FALSE(streams_.Passed(point));
  streams_.Look();
  EXPECT_TRUE(streams_.Passed(points[9]));
  for (const Point& point : points) EXPECT_TRUE(streams_.Passed(point));
}

TEST_F(StreamsTest, NothingIsRecordedOnAStreamThatIsCaptured) {
  const CUstream stream = Make();
  const Point before = Work(stream);
  ASSERT_EQ(Fake<decltype(cuStreamBeginCapture)>("cuStreamBeginCapture_v2")(
                stream, CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_SUCCESS);
  EXPECT_FALSE(streams_.Passed(before));
  CUgraph graph = nullptr;
  EXPECT_EQ(Fake<decltype(cuStreamEndCapture)>("cuStreamEndCapture")(stream, &graph), CUDA_SUCCESS);
  EXPECT_TRUE(Passes(before));
}

}  // namespace
}  // namespace ravenstore::elastic
