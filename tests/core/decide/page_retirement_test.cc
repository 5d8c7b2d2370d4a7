#include "core/decide/page_retirement.h"

#include <gtest/gtest.h>

namespace ravenstore::core::decide {
namespace {

using Step = Retirement::Step;

TEST(PageRetirementTest, FreePagesGoFirstThenEmptiedOnesThenIdleUnits) {
  HeldMemory held{.surplus = 4, .has_free = true, .spare = 1};
  EXPECT_EQ(NextRetirement(held).step, Step::kRelease);
  held.has_free = false;
  EXPECT_EQ(NextRetirement(held).step, Step::kEmptySlots);
  held.spare = 0;
  EXPECT_EQ(NextRetirement(held).step, Step::kLeave);
  EXPECT_EQ(NextRetirement(held).pages, 4u);
}

TEST(PageRetirementTest, WhatIsOnItsWayOutIsCounted) {
  EXPECT_EQ(NextRetirement({.surplus = 4, .leaving = 3}).pages, 1u);
  EXPECT_EQ(NextRetirement({.surplus = 4, .leaving = 4}).step, Step::kNone);
  // Its slots are in use now and will be idle: the page is emptied then.
  EXPECT_EQ(NextRetirement({.surplus = 1, .spare = 1, .can_empty = false}).step, Step::kNone);
}

TEST(PageRetirementTest, WithinTheShareNothingGoes) {
  EXPECT_EQ(NextRetirement({.surplus = 0, .has_free = true, .spare = 2}).step, Step::kNone);
}

}  // namespace
}  // namespace ravenstore::core::decide
