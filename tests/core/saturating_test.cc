#include "core/saturating.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

TEST(SaturatingTest, ASumThatFitsIsExact) {
  EXPECT_EQ(SaturatingSum(2, 3), 5u);
  EXPECT_EQ(SaturatingSum(~uint64_t{} - 1, 1), ~uint64_t{});
}

TEST(SaturatingTest, ALargerOneStopsAtTheLargestNumber) {
  uint64_t sum = 2;
  AddSaturating(~uint64_t{} - 1, &sum);
  EXPECT_EQ(sum, ~uint64_t{});
  AddSaturating(~uint64_t{}, &sum);
  EXPECT_EQ(sum, ~uint64_t{});
}

}  // namespace
}  // namespace ravenstore::core
