#include "core/plan/page_size.h"

#include <gtest/gtest.h>

namespace ravenstore::core::plan {
namespace {

TEST(PageSizeTest, ABudgetHas256PagesIfTheyAreNotTooSmall) {
  EXPECT_EQ(PageSizeFor(GiB(70), false), MiB(16));
  EXPECT_EQ(PageSizeFor(GiB(4), false), MiB(16));
  EXPECT_EQ(PageSizeFor(GiB(4) - Bytes(1), false), MiB(8));
  EXPECT_EQ(PageSizeFor(MiB(100), false), MiB(8));
}

TEST(PageSizeTest, PagesThatChangeHandsAreLarge) {
  EXPECT_EQ(PageSizeFor(MiB(100), true), MiB(32));
}

}  // namespace
}  // namespace ravenstore::core::plan
