#include "elastic/job_places.h"

#include <gtest/gtest.h>

namespace ravenstore::elastic {
namespace {

using core::kNoStream;
using core::MiB;
using core::StreamId;

constexpr StreamId kOne{1};
constexpr StreamId kOther{2};

TEST(JobPlacesTest, AFreedPlaceIsTheSameStreamsAtOnceAndOthersWhenItHasPassed) {
  JobPlaces places(MiB(4), MiB(64));
  const auto first = places.Allocate(1, MiB(4), UINT32_MAX, kOne);
  ASSERT_TRUE(first);
  EXPECT_EQ(places.UnitsOf(1).count, 1u);
  places.Free(1, kOne);
  const auto others = places.Allocate(2, MiB(4), UINT32_MAX, kOther);
  ASSERT_TRUE(others);
  EXPECT_NE(others->at, first->at);
  const auto own = places.Allocate(3, MiB(4), UINT32_MAX, kOne);
  ASSERT_TRUE(own);
  EXPECT_EQ(own->at, first->at);
  places.Free(3, kOne);
  places.EndFree(1);
  places.EndFree(3);
  EXPECT_EQ(places.Allocate(4, MiB(4), UINT32_MAX, kOther)->at, first->at);
}

TEST(JobPlacesTest, APlaceOfNoStreamIsFreeWhenAllHavePassedItsFree) {
  JobPlaces places(MiB(4), MiB(64));
  const auto first = places.Allocate(1, MiB(4), UINT32_MAX, kNoStream);
  places.Free(1, kNoStream);
  EXPECT_NE(places.Allocate(2, MiB(4), UINT32_MAX, kNoStream)->at, first->at);
  places.EndFree(1);
  EXPECT_EQ(places.Allocate(3, MiB(4), UINT32_MAX, kNoStream)->at, first->at);
}

TEST(JobPlacesTest, WhereNoAddressesAreLeftThereIsNoPlace) {
  JobPlaces places(MiB(4), MiB(8));
  EXPECT_TRUE(places.Allocate(1, MiB(8), UINT32_MAX, kNoStream));
  EXPECT_FALSE(places.Allocate(2, MiB(2), UINT32_MAX, kNoStream));
  places.Forget(1);
  EXPECT_TRUE(places.Allocate(2, MiB(2), UINT32_MAX, kNoStream));
}

}  // namespace
}  // namespace ravenstore::elastic
