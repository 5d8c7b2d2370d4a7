#include "core/plan/held_pages.h"

#include <gtest/gtest.h>

namespace ravenstore::core::plan {
namespace {

TEST(HeldPagesTest, SlotsTakeAsManyPagesAsTheyFill) {
  HeldPages held;
  held.Add(1);
  for (int i = 0; i < 5; ++i) held.Add(4);
  EXPECT_EQ(held.pages(), 3u);
  held.Remove(4);
  EXPECT_EQ(held.pages(), 2u);
  held.Remove(1);
  EXPECT_EQ(held.pages(), 1u);
}

}  // namespace
}  // namespace ravenstore::core::plan
