#include "core/decide/page_admission.h"

#include <gtest/gtest.h>

namespace ravenstore::core::decide {
namespace {

TEST(PageAdmissionTest, ACallWaitsForOthersButNotForItself) {
  EXPECT_EQ(Admit({.own = 2, .in_use = 4, .may_hold = 4}), Admission::kNow);
  EXPECT_EQ(Admit({.own = 2, .in_use = 5, .may_hold = 4}), Admission::kLater);
  EXPECT_EQ(Admit({.own = 5, .in_use = 5, .may_hold = 4}), Admission::kTooLarge);
}

TEST(PageAdmissionTest, ACreateLeavesAPageEmptyAndOneForEachClassOfSlots) {
  EXPECT_TRUE(HasPlace({.occupied = 9, .places = 10}));
  EXPECT_FALSE(HasPlace({.occupied = 10, .places = 10}));
  EXPECT_FALSE(HasPlace({.occupied = 9, .classes = 1, .places = 10}));
}

}  // namespace
}  // namespace ravenstore::core::decide
