#include "core/books/unit_totals.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

using Sum = UnitTotals::Sum;

TEST(UnitTotalsTest, AUnitCountsOnce) {
  UnitTotals totals;
  totals.Resize(4);
  for (int i = 0; i < 2; ++i) {
    totals.SetOccupied(2, 1, true);
    totals.SetLeaving(2, true);
    totals.Set(2, Sum::kInUse, MiB(2), true);
  }
  EXPECT_EQ(totals.occupied().pages(), 1u);
  EXPECT_EQ(totals.leaving(), 1u);
  EXPECT_EQ(totals[Sum::kInUse], MiB(2));
  EXPECT_EQ(totals[Sum::kReady], Bytes{});
  for (int i = 0; i < 2; ++i) {
    totals.SetOccupied(2, 1, false);
    totals.SetLeaving(2, false);
    totals.Set(2, Sum::kInUse, MiB(2), false);
  }
  EXPECT_EQ(totals.occupied().pages(), 0u);
  EXPECT_EQ(totals.leaving(), 0u);
  EXPECT_EQ(totals[Sum::kInUse], Bytes{});
}

TEST(UnitTotalsTest, UnitsThatDoNotExistAreNotOccupied) {
  EXPECT_FALSE(UnitTotals().IsOccupied(7));
}

}  // namespace
}  // namespace ravenstore::core
