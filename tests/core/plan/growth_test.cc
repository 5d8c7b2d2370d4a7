#include "core/plan/growth.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ravenstore::core::plan {
namespace {

using std::chrono::microseconds;

TEST(GrowthTest, WhatWasCreatedInTheLastWindowIsExpectedAgain) {
  Growth growth{microseconds(100)};
  EXPECT_EQ(growth.At(microseconds(0)), Bytes{});
  growth.Created(0, MiB(2), microseconds(10));
  growth.Created(1, MiB(3), microseconds(50));
  EXPECT_EQ(growth.At(microseconds(110)), MiB(5));
  EXPECT_EQ(growth.At(microseconds(111)), MiB(3));
  EXPECT_EQ(growth.At(microseconds(200)), Bytes{});
}

TEST(GrowthTest, WhatWasFreedIsNotExpected) {
  Growth growth{microseconds(100)};
  growth.Created(0, MiB(2), microseconds(10));
  growth.Created(1, MiB(3), microseconds(10));
  growth.Freed(0);
  growth.Freed(7);  // created long before
  EXPECT_EQ(growth.At(microseconds(20)), MiB(3));
  EXPECT_EQ(growth.At(microseconds(200)), Bytes{});
}

TEST(GrowthTest, ATensorWithTheIndexOfAFreedOneIsExpectedForItsOwnWindow) {
  Growth growth{microseconds(100)};
  growth.Created(0, MiB(2), microseconds(10));
  growth.Freed(0);
  growth.Created(0, MiB(3), microseconds(50));
  EXPECT_EQ(growth.At(microseconds(111)), MiB(3));
  EXPECT_EQ(growth.At(microseconds(151)), Bytes{});
}

}  // namespace
}  // namespace ravenstore::core::plan
