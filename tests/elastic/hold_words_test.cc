#include "elastic/hold_words.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace ravenstore::elastic {
namespace {

TEST(HoldWordsTest, ARangeIsHeldAtOnceWhileItIsOpen) {
  HoldWords words;
  words.Grow(2);
  EXPECT_FALSE(words.TryHold(1)) << "it may have to come first";
  words.Open(1);
  EXPECT_TRUE(words.IsOpen(1));
  EXPECT_FALSE(words.IsOpen(0));
  EXPECT_TRUE(words.TryHold(1));
  EXPECT_FALSE(words.Close(1)) << "there is a hold";
  EXPECT_TRUE(words.IsOpen(1));
  words.EndHold(1);
  EXPECT_TRUE(words.Close(1));
  EXPECT_FALSE(words.TryHold(1));
}

TEST(HoldWordsTest, AHoldOfAClosedRangeKeepsItFromBeingClosed) {
  HoldWords words;
  words.Grow(1);
  words.Hold(0);
  EXPECT_FALSE(words.Close(0));
  words.Open(0);
  words.Hold(0);
  words.EndHold(0);
  EXPECT_FALSE(words.Close(0));
  words.EndHold(0);
  EXPECT_TRUE(words.Close(0));
}

// Either the range is held, or it is closed.
TEST(HoldWordsTest, AThreadHoldsWhatAnotherCloses) {
  HoldWords words;
  words.Grow(1);
  std::atomic<bool> is_closed = true;
  std::atomic<bool> ends = false;
  std::atomic<uint64_t> wrong = 0;
  std::thread holder([&] {
    while (!ends) {
      if (!words.TryHold(0)) continue;
      wrong += is_closed ? 1 : 0;
      words.EndHold(0);
    }
  });
  for (int round = 0; round < 20000; ++round) {
    is_closed = false;
    words.Open(0);
    while (!words.Close(0)) std::this_thread::yield();
    is_closed = true;
  }
  ends = true;
  holder.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace ravenstore::elastic
