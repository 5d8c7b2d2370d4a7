#include "core/check.h"

#include <gtest/gtest.h>

namespace {

TEST(CheckTest, EvaluatesItsConditionOnce) {
  int evaluated = 0;
  RAVEN_CHECK(++evaluated == 1);
  EXPECT_EQ(evaluated, 1);
}

TEST(CheckDeathTest, SaysWhatBrokeAndWhere) {
  const int apples = 2;
  EXPECT_DEATH(RAVEN_CHECK(apples == 3), "apples == 3.*|check_test");
}

}  // namespace
