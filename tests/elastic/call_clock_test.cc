#include "elastic/call_clock.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ravenstore::elastic {
namespace {

using std::chrono::milliseconds;

TEST(CallClockTest, CallsHaveTheirNumbersInOrder) {
  CallClock clock;
  EXPECT_EQ(clock.at(), core::Duration{});
  EXPECT_EQ(clock.next(), 0);
  EXPECT_EQ(clock.Begin(1, core::Tick{}).call, 0);
  EXPECT_EQ(clock.Begin(2, core::Tick{} + milliseconds(1)).call, 1);
  EXPECT_EQ(clock.next(), 2);
}

TEST(CallClockTest, ItsTimeNeverGoesBack) {
  CallClock clock;
  core::Tick now{};
  core::Duration before{};
  for (int step = 0; step < 3; ++step) {
    for (uint64_t kind = 1; kind <= 4; ++kind) {
      now += milliseconds(step == 1 ? 5 : 1);
      clock.Begin(kind, now);
      EXPECT_GE(clock.at(), before);
      before = clock.at();
    }
  }
  EXPECT_EQ(clock.next(), 12);
}

}  // namespace
}  // namespace ravenstore::elastic
