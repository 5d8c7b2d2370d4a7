#include "core/plan/use_worth.h"

#include <gtest/gtest.h>

namespace ravenstore::core::plan {
namespace {

TEST(UseWorthTest, AUnitIsWorthItsUses) {
  UseWorth worth;
  UnitState unit{.live = 1};
  for (int i = 0; i < 3; ++i) worth.Use(&unit);
  EXPECT_EQ(unit.worth, 3);
}

TEST(UseWorthTest, AUseOfOneTensorOfFourIsAQuarter) {
  UseWorth worth;
  UnitState page{.live = 4};
  worth.Use(&page);
  EXPECT_EQ(page.worth, 0.25);
}

TEST(UseWorthTest, OldUsesAreWorthLessThanNewOnes) {
  UseWorth worth;
  UnitState old{.live = 1};
  for (int i = 0; i < 3; ++i) worth.Use(&old);
  UnitState other{.live = 1};
  for (int i = 0; i < 2; ++i) worth.Use(&other);
  worth.Leaves(other);
  worth.Leaves(UnitState{});  // another that was worth less
  UnitState young{.live = 1};
  for (int i = 0; i < 2; ++i) worth.Use(&young);
  EXPECT_EQ(young.worth, 4);
  EXPECT_GT(young.worth, old.worth);
}

}  // namespace
}  // namespace ravenstore::core::plan
