#include "cluster/granule_sums.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ravenstore::cluster {
namespace {

constexpr uint32_t kWhole = 256 << 10;
constexpr size_t kGranules = 256;

TEST(GranuleSumsTest, WhatWasSetIsThere) {
  GranuleSums sums(kGranules, core::Bytes(kWhole));
  std::vector<GranuleSum> expected(kGranules);
  std::mt19937_64 random(20261127);
  for (int i = 0; i < 10'000; ++i) {
    const size_t index = random() % kGranules;
    const auto length = static_cast<uint32_t>(random() % 3 == 0   ? 0
                                              : random() % 2 == 0 ? kWhole
                                                                  : random() % kWhole + 1);
    expected[index] = {.hash = length == 0 ? 0 : random() % 3, .length = length};
    sums.Set(index, expected[index]);
    ASSERT_EQ(sums[index], expected[index]);
  }
  EXPECT_EQ(sums.Range(0, sums.size()), expected);
}

TEST(GranuleSumsTest, WholeGranulesTakeEightBytesAndABitEach) {
  GranuleSums sums(kGranules, core::Bytes(kWhole));
  for (size_t i = 0; i < kGranules; ++i) sums.Set(i, {.hash = i, .length = kWhole});
  const core::Bytes whole = sums.footprint();
  EXPECT_LE(whole.count(), kGranules * 9 - kGranules * 7 / 8 + 32);
  sums.Set(7, {.hash = 7, .length = 1});
  EXPECT_GT(sums.footprint(), whole);
  sums.Set(7, {});
  EXPECT_EQ(sums.footprint(), whole);
}

}  // namespace
}  // namespace ravenstore::cluster
