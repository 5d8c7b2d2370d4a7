#include "elastic/twins.h"

#include <gtest/gtest.h>

namespace ravenstore::elastic {
namespace {

TEST(TwinsTest, ACallHasTheLastOneOfItsKind) {
  Twins twins(8);
  EXPECT_EQ(twins.Next(3, 0), std::nullopt);
  EXPECT_EQ(twins.Next(4, 1), std::nullopt);
  EXPECT_EQ(twins.Next(3, 2), 0);
  EXPECT_EQ(twins.Next(3, 5), 2);
  EXPECT_EQ(twins.Next(11, 6), std::nullopt) << "another kind of the same place";
  EXPECT_EQ(twins.Next(3, 7), std::nullopt) << "it was replaced";
}

TEST(TwinsTest, KindsDifferByEachPart) {
  EXPECT_NE(Twins::Mix(Twins::Mix(1, 2), 3), Twins::Mix(Twins::Mix(1, 3), 2));
}

}  // namespace
}  // namespace ravenstore::elastic
