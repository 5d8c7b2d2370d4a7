#include "core/plan/places_in_use.h"

#include <gtest/gtest.h>

namespace ravenstore::core::plan {
namespace {

constexpr StreamId kFirst{1};
constexpr StreamId kSecond{2};

TEST(PlacesInUseTest, APlaceIsOthersForAllStreamsButItsOwn) {
  PlacesInUse places;
  places.Add(KiB(8), KiB(4), kFirst);
  EXPECT_FALSE(places.HasOthers(KiB(8), KiB(4), kFirst));
  EXPECT_TRUE(places.HasOthers(KiB(8), KiB(4), kSecond));
  EXPECT_TRUE(places.HasOthers(KiB(8), KiB(4), kNoStream));
}

TEST(PlacesInUseTest, NeighboursDoNotOverlap) {
  PlacesInUse places;
  places.Add(KiB(8), KiB(4), kFirst);
  EXPECT_FALSE(places.HasOthers(KiB(4), KiB(4), kSecond));
  EXPECT_FALSE(places.HasOthers(KiB(12), KiB(4), kSecond));
  EXPECT_TRUE(places.HasOthers(KiB(4), KiB(4) + Bytes(1), kSecond));
  EXPECT_TRUE(places.HasOthers(KiB(12) - Bytes(1), KiB(1), kSecond));
  EXPECT_TRUE(places.HasOthers(Bytes{}, KiB(64), kSecond));
  EXPECT_TRUE(places.HasOthers(KiB(9), KiB(1), kSecond));
}

TEST(PlacesInUseTest, AStreamMayHaveAPlaceSeveralTimes) {
  PlacesInUse places;
  places.Add(KiB(8), KiB(4), kFirst);
  places.Add(KiB(8), KiB(4), kFirst);
  places.Add(KiB(8), KiB(2), kFirst);
  EXPECT_EQ(places.size(), 3u);
  places.Remove(KiB(8), KiB(4), kFirst);
  places.Remove(KiB(8), KiB(4), kFirst);
  EXPECT_TRUE(places.HasOthers(KiB(8), KiB(4), kSecond));
  places.Remove(KiB(8), KiB(2), kFirst);
  EXPECT_FALSE(places.HasOthers(KiB(8), KiB(4), kSecond));
  EXPECT_EQ(places.size(), 0u);
}

TEST(PlacesInUseTest, OneStreamMayBeFarBehindButNotSeveral) {
  constexpr int kMany = 5000;
  PlacesInUse places;
  for (int i = 0; i < kMany; ++i) {
    ASSERT_TRUE(places.HasRoomFor(kFirst));
    places.Add(KiB(8), KiB(4), kFirst);
  }
  EXPECT_FALSE(places.HasRoomFor(kSecond));
  for (int i = 0; i + 1 < kMany; ++i) places.Remove(KiB(8), KiB(4), kFirst);
  EXPECT_TRUE(places.HasRoomFor(kSecond));
}

}  // namespace
}  // namespace ravenstore::core::plan
