#include "core/plan/small_tensors.h"

#include <gtest/gtest.h>

namespace ravenstore::core::plan {
namespace {

TEST(SmallTensorRuleTest, WithoutSlotsAllLieInPages) {
  const SmallTensorRule rule{.page = MiB(16)};
  EXPECT_EQ(rule.SlotsPerPage(KiB(1)), 0u);
}

TEST(SmallTensorRuleTest, SlotsHaveThreeSignificantBits) {
  const SmallTensorRule rule{.page = MiB(16), .largest_slot = MiB(16)};
  EXPECT_EQ(rule.SlotsPerPage(MiB(4)), 4u);
  EXPECT_EQ(rule.SlotsPerPage(MiB(4) + Bytes(1)), 3u);
  EXPECT_EQ(rule.SlotsPerPage(MiB(3)), 5u);
  EXPECT_EQ(rule.SlotsPerPage(MiB(1)), 16u);
  EXPECT_EQ(rule.SlotsPerPage(KiB(600)), 24u);  // 27 would fit
  EXPECT_EQ(rule.SlotsPerPage(Bytes(1)), MiB(16).count() / 512);
}

TEST(SmallTensorRuleTest, ATensorOfAPageHasASlotOfItsOwn) {
  const SmallTensorRule rule{.page = MiB(16), .largest_slot = MiB(16)};
  EXPECT_EQ(rule.SlotsPerPage(MiB(8)), 2u);
  EXPECT_EQ(rule.SlotsPerPage(MiB(16)), 1u);
  EXPECT_EQ(rule.SlotsPerPage(MiB(16) + Bytes(1)), 0u);
}

TEST(SmallTensorRuleTest, ATensorFitsItsSlotAndWastesLittle) {
  const SmallTensorRule rule{.page = MiB(2), .largest_slot = MiB(2)};
  for (uint64_t size = 1; size <= KiB(512).count(); ++size) {
    const Bytes exact(rule.page.count() / rule.SlotsPerPage(Bytes(size)));
    const Bytes slot = exact.RoundDown(kExtentAlignment);
    ASSERT_GE(slot, Bytes(size));
    ASSERT_LE(slot * 4, Bytes(size).RoundUp(kExtentAlignment) * 6) << size;
  }
}

TEST(SlotNamesTest, TheLowestFreeNameOfTheClassIsUsedAgain) {
  SlotNames names;
  EXPECT_EQ(names.Allocate(8), 0u);
  EXPECT_EQ(names.Allocate(8), 1u);
  EXPECT_EQ(names.Allocate(16), 2u);
  names.Free(1, 8);
  names.Free(0, 8);
  EXPECT_EQ(names.Allocate(16), 3u);
  EXPECT_EQ(names.Allocate(8), 0u);
  EXPECT_EQ(names.Allocate(8), 1u);
}

TEST(SlotNamesTest, ANameIsTakenIfItIsFreeInItsClass) {
  SlotNames names;
  EXPECT_TRUE(names.AllocateAt(2, 8));
  EXPECT_FALSE(names.AllocateAt(2, 8));
  EXPECT_FALSE(names.AllocateAt(1, 16));
  EXPECT_EQ(names.Allocate(8), 0u);
}

}  // namespace
}  // namespace ravenstore::core::plan
