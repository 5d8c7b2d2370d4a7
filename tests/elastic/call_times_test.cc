#include "elastic/call_times.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::elastic {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kCalls = 4;

// Steps of four calls, each of which corresponds to that of the step before.
class CallTimesTest : public testing::Test {
 protected:
  void Call(core::Tick now = {}) {
    times_.Add(end_ >= kCalls ? std::optional(end_ - kCalls) : std::nullopt, now);
    ++end_;
  }
  void Step() {
    for (uint64_t call = 0; call < kCalls; ++call) Call();
  }
  // Of the last step, by stretches of two calls.
  void Took(core::Duration each) {
    for (uint64_t call = end_ - kCalls; call < end_; call += 2)
      times_.Took(static_cast<int64_t>(call), static_cast<int64_t>(call) + 2, each * 2);
  }
  core::Duration LastThree() { return times_.Since(static_cast<int64_t>(end_) - 3); }

  CallTimes times_{256};
  uint64_t end_ = 0;
};

TEST_F(CallTimesTest, WithoutMeasurementTheLeastTimeBetweenCallsCounts) {
  core::Tick now{};
  for (const int gap : {30, 10, 20}) {
    for (uint64_t call = 0; call < kCalls; ++call) Call(now += milliseconds(gap));
  }
  EXPECT_EQ(LastThree(), milliseconds(20));
}

TEST_F(CallTimesTest, TheTimeOnTheGpuCountsAndNotThatOfTheCall) {
  Step();
  Took(milliseconds(10));
  Step();
  Step();
  EXPECT_EQ(LastThree(), milliseconds(20));
}

TEST_F(CallTimesTest, TheLeastThatAStretchTookCounts) {
  for (const int each : {1000, 10, 500, 500}) {
    Step();
    Took(milliseconds(each));
  }
  Step();
  Step();
  EXPECT_EQ(LastThree(), milliseconds(20));
}

// The job is steps ahead of the GPU.
TEST_F(CallTimesTest, ALateMeasurementCountsForTheCallsThatFollow) {
  for (int step = 0; step < 10; ++step) Step();
  for (int64_t call = 2; call < 10; call += 2) times_.Took(call, call + 2, milliseconds(20));
  Step();
  EXPECT_EQ(LastThree(), milliseconds(20));
}

TEST_F(CallTimesTest, AStretchThatIsNotRememberedChangesNothing) {
  Step();
  Took(milliseconds(10));
  times_.Took(-1, 2, milliseconds(1));
  times_.Took(2, 2, milliseconds(1));
  times_.Took(2, 5, milliseconds(1));
  Step();
  Step();
  EXPECT_EQ(LastThree(), milliseconds(20));
}

TEST_F(CallTimesTest, StretchesEndWhereTheyDidBefore) {
  EXPECT_FALSE(times_.EndsStretch());
  std::vector<bool> ends;
  for (uint64_t call = 0; call < 8 * kCalls; ++call) {
    Call();
    ends.push_back(times_.EndsStretch());
  }
  // The last call of the second step, and of all others.
  for (size_t call = 0; call < ends.size(); ++call)
    EXPECT_EQ(ends[call], call > kCalls && call % kCalls == kCalls - 1) << call;
}

}  // namespace
}  // namespace ravenstore::elastic
