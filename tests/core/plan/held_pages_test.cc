#include "core/plan/held_pages.h"

#include <gtest/gtest.h>

namespace ravenstore::core::plan {
namespace {

TEST(HeldPagesTest, SlotsTakeAsManyPagesAsTheyFill) {
  HeldPages held;
  held.Add(1, MiB(2));
  for (int i = 0; i < 5; ++i) held.Add(4, KiB(512));
  EXPECT_EQ(held.pages(), 3u);
  EXPECT_EQ(held.bytes(), MiB(2) + KiB(2560));
  held.Remove(4, KiB(512));
  EXPECT_EQ(held.pages(), 2u);
  held.Remove(1, MiB(2));
  EXPECT_EQ(held.pages(), 1u);
}

}  // namespace
}  // namespace ravenstore::core::plan
