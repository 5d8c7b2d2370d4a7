#include "daemon/heap_trim.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace ravenstore::daemon {
namespace {

using std::chrono::seconds;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnAllocator = true;
#else
constexpr bool kOwnAllocator = false;
#endif

constexpr core::Tick kBegin{std::chrono::hours(1)};

TEST(HeapTrimTimerTest, NothingIsDueUntilSomethingWasFreed) {
  HeapTrimTimer timer;
  EXPECT_EQ(timer.due(), core::kNever);
  timer.Freed(kBegin);
  EXPECT_EQ(timer.due(), kBegin);
}

TEST(HeapTrimTimerTest, WhatIsFreedShortlyAfterwardsWaits) {
  HeapTrimTimer timer;
  timer.Freed(kBegin);
  timer.Begin(kBegin);
  EXPECT_EQ(timer.due(), core::kNever);
  timer.Freed(kBegin + seconds(1));
  EXPECT_EQ(timer.due(), core::kNever);  // it is at it
  timer.End();
  EXPECT_EQ(timer.due(), kBegin + HeapTrimTimer::kEvery);
  timer.Freed(kBegin + seconds(2));
  EXPECT_EQ(timer.due(), kBegin + HeapTrimTimer::kEvery);
  timer.Begin(kBegin + HeapTrimTimer::kEvery);
  timer.End();
  EXPECT_EQ(timer.due(), core::kNever);
}

// Anonymous memory of this process.
core::Bytes Resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return core::KiB(std::stoull(line.substr(8)));
  }
  return {};
}

core::Duration ThreadTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// As the tables of many clients: some small pieces of each stay among what is freed.
struct Clients {
  static constexpr size_t kPiece = 1000;
  static constexpr size_t kStays = 500;  // one piece of this many stays
  static constexpr core::Bytes kAll = core::MiB(200);

  Clients() : pieces(kAll.count() / kPiece) {
    for (auto& piece : pieces) {
      piece = static_cast<char*>(std::malloc(kPiece));
      std::memset(piece, 1, kPiece);
    }
  }
  void Leave() {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i % kStays != 0) std::free(std::exchange(pieces[i], nullptr));
    }
  }
  ~Clients() {
    for (char* piece : pieces) std::free(piece);
  }
  std::vector<char*> pieces;
};

TEST(HeapTrimTest, WhatClientsLeftBehindGoesBackInShortSteps) {
  if (kOwnAllocator) GTEST_SKIP() << "the sanitizer's allocator keeps freed memory for itself";
  // Of a thread's arena, which is not the main one.
  std::thread([] {
    Clients clients;
    clients.Leave();
    const core::Bytes before = Resident();
    ASSERT_GT(before, Clients::kAll);
    HeapTrim memory;
    core::Duration longest{0};
    const auto timed = [&longest](auto step) {
      const core::Duration begun = ThreadTime();
      const auto result = step();
      longest = std::max(longest, ThreadTime() - begun);
      return result;
    };
    for (;;) {
      const auto pieces = timed([&] { return memory.Take(); });
      if (pieces.empty()) break;
      HeapTrim::Release(pieces);
    }
    while (!timed([&] { return memory.PutBack(); })) {
    }
    const core::Bytes after = Resident();
    EXPECT_LT(after, core::MiB(60)) << "of " << before.count();
    EXPECT_LT(longest, std::chrono::milliseconds(2));
    RecordProperty("longest_us", static_cast<int>(longest.count() / 1000));
    // What stayed is as it was.
    for (const char* piece : clients.pieces) {
      if (piece == nullptr) continue;
      ASSERT_TRUE(std::all_of(piece, piece + Clients::kPiece, [](char c) { return c == 1; }));
    }
  }).join();
}

TEST(HeapTrimTest, WhereNothingIsFreeItEndsEarlyAndCostsNothing) {
  std::thread([] {
    const core::Bytes before = Resident();
    for (int i = 0; i < 100; ++i) {
      HeapTrim memory;
      for (auto pieces = memory.Take(); !pieces.empty(); pieces = memory.Take())
        HeapTrim::Release(pieces);
      while (!memory.PutBack()) {
      }
    }
    if (!kOwnAllocator) {
      EXPECT_LT(Resident(), before + core::MiB(4));
    }
  }).join();
}

}  // namespace
}  // namespace ravenstore::daemon
