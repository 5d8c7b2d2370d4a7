#include "core/idle_memory.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

constexpr IdleMemory::Options kOptions{
    .reserve = GiB(4), .rise_time = std::chrono::seconds(10), .step = GiB(1)};
constexpr Bytes kTotal = GiB(80);

class IdleMemoryTest : public testing::Test {
 protected:
  // The idle memory once `free` bytes are free at that second.
  Bytes Idle(int64_t second, Bytes free) {
    memory_.Look(Tick(std::chrono::seconds(second)), free);
    return memory_.idle();
  }

  IdleMemory memory_ = IdleMemory::Make(kOptions, kTotal).value();
};

TEST_F(IdleMemoryTest, NothingIsIdleBeforeItWasFreeForTheWholeTime) {
  EXPECT_EQ(memory_.idle(), Bytes{0});
  EXPECT_EQ(Idle(0, GiB(70)), Bytes{0});
  EXPECT_EQ(Idle(9, GiB(70)), Bytes{0});
  EXPECT_EQ(Idle(10, GiB(70)), GiB(66));
}

TEST_F(IdleMemoryTest, ItFallsImmediatelyAndRisesOnceTheTimeHasPassedAgain) {
  Idle(0, GiB(70));
  Idle(10, GiB(70));
  EXPECT_EQ(Idle(11, GiB(50)), GiB(46));
  EXPECT_EQ(Idle(12, GiB(70)), GiB(46));
  EXPECT_EQ(Idle(21, GiB(70)), GiB(46));
  EXPECT_EQ(Idle(22, GiB(70)), GiB(46)) << "the fall was over in second 12, which counts";
  EXPECT_EQ(Idle(23, GiB(70)), GiB(66));
}

TEST_F(IdleMemoryTest, ItRisesToTheLeastThatWasFreeInBetween) {
  Idle(0, GiB(10));
  EXPECT_EQ(Idle(10, GiB(40)), GiB(6));
  EXPECT_EQ(Idle(15, GiB(30)), GiB(6));
  EXPECT_EQ(Idle(16, GiB(40)), GiB(6));
  EXPECT_EQ(Idle(21, GiB(40)), GiB(26)) << "since second 10 at least 30 GiB were free";
  EXPECT_EQ(Idle(27, GiB(40)), GiB(36));
}

TEST_F(IdleMemoryTest, AnOwnerThatAllocatesAndFreesInTurnsIsNotFollowed) {
  Idle(0, GiB(20));
  for (int64_t second = 10; second < 100; second += 2) {
    EXPECT_EQ(Idle(second, GiB(40)), GiB(16)) << second;
    EXPECT_EQ(Idle(second + 1, GiB(20)), GiB(16)) << second;
  }
}

TEST_F(IdleMemoryTest, ItRisesByAStepOrNotAtAllAndFallsByAnything) {
  Idle(0, GiB(20));
  EXPECT_EQ(Idle(10, GiB(20)), GiB(16));
  Idle(11, GiB(21) - MiB(1));
  EXPECT_EQ(Idle(30, GiB(21) - MiB(1)), GiB(16)) << "less than a step";
  Idle(31, GiB(21));
  EXPECT_EQ(Idle(50, GiB(21)), GiB(17));
  EXPECT_EQ(Idle(51, GiB(21) - Bytes{1}), GiB(17) - Bytes{1});
}

TEST_F(IdleMemoryTest, WithinTheReserveNothingIsIdle) {
  EXPECT_EQ(Idle(0, GiB(4)), Bytes{0});
  EXPECT_EQ(Idle(10, GiB(4)), Bytes{0});
  EXPECT_EQ(Idle(20, GiB(1)), Bytes{0});
  EXPECT_EQ(Idle(30, Bytes{0}), Bytes{0});
  Idle(31, GiB(80));
  EXPECT_EQ(Idle(42, GiB(80)), GiB(76));
  EXPECT_EQ(Idle(43, GiB(3)), Bytes{0});
}

TEST_F(IdleMemoryTest, ALateLookSaysNothingOfTheTimeBetween) {
  Idle(0, GiB(20));
  Idle(10, GiB(20));
  EXPECT_EQ(Idle(1000, GiB(70)), GiB(16)) << "until now 20 GiB were known to be free";
  EXPECT_EQ(Idle(1011, GiB(70)), GiB(66));
}

TEST_F(IdleMemoryTest, WhatIsNotKnownIsNotIdleAndTheTimeRestarts) {
  Idle(0, GiB(70));
  Idle(10, GiB(70));
  memory_.Forget();
  EXPECT_EQ(memory_.idle(), Bytes{0});
  EXPECT_EQ(Idle(11, GiB(70)), Bytes{0});
  EXPECT_EQ(Idle(20, GiB(70)), Bytes{0});
  EXPECT_EQ(Idle(21, GiB(70)), GiB(66));
}

TEST(IdleMemoryOptionsTest, WithoutARiseTimeAndAStepItIsWhatIsFreeBeyondTheReserve) {
  IdleMemory memory = IdleMemory::Make({.reserve = GiB(1)}, kTotal).value();
  memory.Look(Tick{}, GiB(5));
  EXPECT_EQ(memory.idle(), GiB(4));
  memory.Look(Tick(std::chrono::seconds(1)), GiB(2));
  EXPECT_EQ(memory.idle(), GiB(1));
  memory.Look(Tick(std::chrono::seconds(2)), GiB(3));
  memory.Look(Tick(std::chrono::seconds(3)), GiB(3));
  EXPECT_EQ(memory.idle(), GiB(2));
}

TEST(IdleMemoryOptionsTest, AReserveAboveTheDeviceIsRefusedWithBothNumbers) {
  const auto made = IdleMemory::Make({.reserve = GiB(81)}, kTotal);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(made.error().message, "a reserve of 81.0 GiB is more than the 80.0 GiB that there are");
  ASSERT_TRUE(IdleMemory::Make({.reserve = kTotal}, kTotal).ok()) << "then nothing is ever idle";
}

}  // namespace
}  // namespace ravenstore::core
