#include "elastic/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::MiB;

constexpr CUdeviceptr kBegin = 0x7000000000;

class ArenaTest : public testing::Test {
 protected:
  Arena Make(Bytes size) {
    return Arena(kBegin, size, [this](const Point& point) { return point.call <= passed_; });
  }
  static CUdeviceptr At(Bytes offset) { return kBegin + offset.count(); }

  uint64_t passed_ = 0;
};

TEST_F(ArenaTest, TheSmallestPieceThatHoldsItServesAndTheLowestOfThose) {
  Arena arena = Make(MiB(100));
  for (const int size : {8, 1, 4, 1, 4, 1}) ASSERT_TRUE(arena.Take(MiB(size), 1));
  arena.Give(At(MiB(0)), MiB(8), {});
  arena.Give(At(MiB(14)), MiB(4), {});
  arena.Give(At(MiB(9)), MiB(4), {});
  EXPECT_EQ(arena.Take(MiB(3), 1), At(MiB(9)));
  EXPECT_EQ(arena.Take(MiB(3), 1), At(MiB(14)));
  EXPECT_EQ(arena.Take(MiB(3), 1), At(MiB(0)));
  EXPECT_EQ(arena.Take(MiB(1), 1), At(MiB(12)));
  EXPECT_EQ(arena.Take(MiB(81), 1), At(MiB(19)));
  EXPECT_FALSE(arena.Take(MiB(81), 1));
}

TEST_F(ArenaTest, NeighboursAreOneAgain) {
  Arena arena = Make(MiB(12));
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(arena.Take(MiB(2), 1));
  for (const int i : {1, 3, 2}) arena.Give(At(MiB(2 * i)), MiB(2), {{1, 5}});
  EXPECT_EQ(arena.Take(MiB(6), 1), At(MiB(2)));
}

TEST_F(ArenaTest, WhatIsFreedInAStreamsOrderServesThatStreamAtOnceAndOthersLater) {
  Arena arena = Make(MiB(100));
  ASSERT_TRUE(arena.Take(MiB(4), 1));
  ASSERT_TRUE(arena.Take(MiB(4), 1));
  arena.Give(At(MiB(0)), MiB(4), {{1, 7}});
  EXPECT_EQ(arena.Take(MiB(4), 2), At(MiB(8)));
  EXPECT_EQ(arena.Take(MiB(4), 0), At(MiB(12)));
  EXPECT_EQ(arena.Take(MiB(4), 1), At(MiB(0)));
  arena.Give(At(MiB(0)), MiB(4), {{1, 8}});
  passed_ = 8;
  EXPECT_EQ(arena.Take(MiB(4), 0), At(MiB(0)));
}

TEST_F(ArenaTest, AStreamThatMayNotHaveTheEndOfWhatWasUsedGetsWhatNeverWas) {
  Arena arena = Make(MiB(100));
  ASSERT_TRUE(arena.Take(MiB(40), 1));
  arena.Give(At(MiB(0)), MiB(40), {{1, 7}});
  EXPECT_EQ(arena.Take(MiB(8), 2), At(MiB(40)));
  EXPECT_EQ(arena.Take(MiB(8), 1), At(MiB(0)));
  EXPECT_FALSE(arena.Take(MiB(53), 2));
  EXPECT_EQ(arena.Take(MiB(52), 2), At(MiB(48)));
}

TEST_F(ArenaTest, PiecesThatWaitForDifferentStreamsStayApartUntilTheyHavePassed) {
  Arena arena = Make(MiB(8));
  ASSERT_TRUE(arena.Take(MiB(4), 1));
  ASSERT_TRUE(arena.Take(MiB(4), 2));
  arena.Give(At(MiB(0)), MiB(4), {{1, 3}});
  arena.Give(At(MiB(4)), MiB(4), {{2, 4}});
  EXPECT_FALSE(arena.Take(MiB(8), 1));
  EXPECT_EQ(arena.Take(MiB(4), 2), At(MiB(4)));
  passed_ = 3;
  arena.Give(At(MiB(4)), MiB(4), {{2, 5}});
  EXPECT_EQ(arena.Take(MiB(8), 2), At(MiB(0)));
}

TEST_F(ArenaTest, AProgramThatRepeatsItsStepsGetsTheSameAddressesInEach) {
  Arena arena = Make(MiB(4096));
  std::vector<std::vector<CUdeviceptr>> steps;
  for (int step = 0; step < 4; ++step) {
    std::mt19937 random(7);
    std::vector<std::pair<CUdeviceptr, Bytes>> live;
    steps.emplace_back();
    for (int i = 0; i < 200; ++i) {
      const Bytes size = MiB(2 * (1 + random() % 30));
      const auto begin = arena.Take(size, 1);
      ASSERT_TRUE(begin);
      steps.back().push_back(*begin);
      live.emplace_back(*begin, size);
      if (live.size() < 20) continue;
      const auto out = live.begin() + static_cast<ptrdiff_t>(random() % live.size());
      arena.Give(out->first, out->second, {{1, static_cast<uint64_t>(i)}});
      live.erase(out);
    }
    for (const auto& [begin, size] : live) arena.Give(begin, size, {{1, 300}});
  }
  for (size_t step = 1; step < steps.size(); ++step) EXPECT_EQ(steps[step], steps[0]);
}

TEST_F(ArenaTest, NothingIsGivenTwiceNorLost) {
  constexpr uint64_t kSeed = 20261125;
  RecordProperty("seed", std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  Arena arena = Make(MiB(512));
  struct Free {
    Bytes size;
    Point point;
  };
  std::map<CUdeviceptr, Bytes> taken;
  std::map<CUdeviceptr, Free> free;  // as it was given, by pieces of a MiB
  for (uint64_t i = 1; i < 20000; ++i) {
    if (random() % 50 == 0) passed_ = i - 1;
    if (taken.empty() || random() % 2 == 0) {
      const Bytes size = MiB(1 + random() % 24);
      const auto stream = static_cast<uint32_t>(random() % 3);
      const auto begin = arena.Take(size, stream);
      if (!begin) continue;
      ASSERT_GE(*begin, arena.begin());
      ASSERT_LE(*begin + size.count(), arena.end());
      const auto after = taken.lower_bound(*begin);
      if (after != taken.end()) {
        ASSERT_LE(*begin + size.count(), after->first);
      }
      if (after != taken.begin()) {
        const auto before = std::prev(after);
        ASSERT_LE(before->first + before->second.count(), *begin);
      }
      for (CUdeviceptr at = *begin; at < *begin + size.count(); at += MiB(1).count()) {
        const auto was = free.find(at);
        if (was == free.end()) continue;
        const Point& point = was->second.point;
        EXPECT_TRUE(point.call <= passed_ || (stream != 0 && point.stream == stream));
        free.erase(was);
      }
      taken.emplace(*begin, size);
    } else {
      auto out = taken.begin();
      std::advance(out, static_cast<ptrdiff_t>(random() % taken.size()));
      const Point point{1 + static_cast<uint32_t>(random() % 2), i};
      for (Bytes at; at < out->second; at += MiB(1)) free[out->first + at.count()] = {at, point};
      arena.Give(out->first, out->second, {point});
      taken.erase(out);
    }
  }
  for (const auto& [begin, size] : taken) arena.Give(begin, size, {});
  passed_ = ~uint64_t{0};
  std::set<CUdeviceptr> all;
  while (const auto begin = arena.Take(MiB(1), 0)) EXPECT_TRUE(all.insert(*begin).second);
  EXPECT_EQ(all.size(), 512u);
}

}  // namespace
}  // namespace ravenstore::elastic
