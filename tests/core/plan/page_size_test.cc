#include "core/plan/page_size.h"

#include <gtest/gtest.h>

namespace ravenstore::core::plan {
namespace {

TEST(PageSizeTest, ABudgetHas256PagesIfTheyAreNotTooSmall) {
  EXPECT_EQ(PageSizeFor(GiB(70), false), MiB(16));
  EXPECT_EQ(PageSizeFor(GiB(4), false), MiB(16));
  EXPECT_EQ(PageSizeFor(GiB(4) - Bytes(1), false), MiB(8));
  EXPECT_EQ(PageSizeFor(MiB(100), false), MiB(8));
  EXPECT_EQ(PageSizeFor(MiB(6), false), MiB(2)) << "four pages at least, down to 2 MiB";
}

TEST(PageSizeTest, PagesThatChangeHandsAreLarge) {
  EXPECT_EQ(PageSizeFor(MiB(200), true), MiB(32));
}

TEST(PageSizeTest, OfADeviceItIsByTheDevicesAndTheHostsMemory) {
  EXPECT_EQ(PageOfDevice(GiB(139), GiB(24), {}), MiB(64));
  EXPECT_EQ(PageOfDevice(GiB(24), GiB(24), {}), MiB(16));
  EXPECT_EQ(PageOfDevice(MiB(64), GiB(24), {}), MiB(2));
  EXPECT_EQ(PageOfDevice(GiB(139), GiB(2), {}), MiB(32));
  EXPECT_EQ(PageOfDevice(GiB(139), MiB(64), {}), MiB(2));
}

TEST(PageSizeTest, ASmallBudgetHasManyPages) {
  EXPECT_EQ(PageOfDevice(GiB(139), GiB(24), GiB(8)), MiB(64));
  EXPECT_EQ(PageOfDevice(GiB(139), GiB(24), GiB(3)), MiB(16));
  EXPECT_EQ(PageOfDevice(GiB(24), GiB(24), GiB(8)), MiB(16));
  EXPECT_EQ(PageOfDevice(GiB(139), GiB(24), MiB(10)), MiB(2));
}

}  // namespace
}  // namespace ravenstore::core::plan
