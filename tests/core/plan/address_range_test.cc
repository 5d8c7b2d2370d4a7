#include "core/plan/address_range.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>

#include "tests/core/plan/seeds.h"

namespace ravenstore::core::plan {
namespace {

TEST(AddressRangeTest, PlacesFollowEachOtherInUnitsOf512Bytes) {
  AddressRange range(KiB(64));
  EXPECT_EQ(range.Allocate(Bytes(1)), Bytes(0));
  EXPECT_EQ(range.Allocate(Bytes(513)), Bytes(512));
  EXPECT_EQ(range.Allocate(Bytes(512)), Bytes(1536));
  EXPECT_EQ(range.end(), Bytes(2048));
}

TEST(AddressRangeTest, ASmallRequestTakesTheLowestHole) {
  AddressRange range(KiB(64));
  const Bytes first = range.Allocate(KiB(8));
  range.Allocate(KiB(1));
  const Bytes second = range.Allocate(KiB(4));
  range.Allocate(KiB(1));
  range.Free(first, KiB(8));
  range.Free(second, KiB(4));
  EXPECT_EQ(range.Allocate(KiB(3)), first);
}

TEST(AddressRangeTest, ALargeRequestTakesTheHoleThatWasFreedLast) {
  AddressRange range(KiB(64));
  const Bytes first = range.Allocate(KiB(64));
  range.Allocate(KiB(1));
  const Bytes second = range.Allocate(KiB(80));
  range.Allocate(KiB(1));
  range.Free(first, KiB(64));
  range.Free(second, KiB(80));
  EXPECT_EQ(range.Allocate(KiB(64)), second);
  EXPECT_EQ(range.Allocate(KiB(64)), first);
}

TEST(AddressRangeTest, FreeNeighboursMerge) {
  AddressRange range(KiB(64));
  const Bytes a = range.Allocate(KiB(1));
  const Bytes b = range.Allocate(KiB(1));
  const Bytes c = range.Allocate(KiB(1));
  range.Allocate(KiB(1));
  range.Free(a, KiB(1));
  range.Free(c, KiB(1));
  EXPECT_EQ(range.holes(), 2u);
  range.Free(b, KiB(1));
  EXPECT_EQ(range.holes(), 1u);
  EXPECT_EQ(range.Allocate(KiB(3)), a);
}

TEST(AddressRangeTest, GrowsFromTheHoleAtItsEnd) {
  AddressRange range(KiB(64));
  range.Allocate(KiB(1));
  const Bytes last = range.Allocate(KiB(2));
  range.Free(last, KiB(2));
  EXPECT_EQ(range.Allocate(KiB(5)), last);
  EXPECT_EQ(range.end(), KiB(6));
}

TEST(AddressRangeTest, APlaceIsTakenOnlyIfAllOfItIsFree) {
  AddressRange range(KiB(64));
  EXPECT_TRUE(range.AllocateAt(KiB(4), KiB(2)));  // beyond the end: the range grows
  EXPECT_FALSE(range.AllocateAt(KiB(3), KiB(2)));
  EXPECT_TRUE(range.AllocateAt(KiB(2), KiB(2)));
  EXPECT_EQ(range.Allocate(KiB(2)), Bytes(0));
}

// No two places overlap, all holes are merged, and the same calls give the same places.
TEST(AddressRangeTest, RandomProgramsNeverOverlapAndRepeat) {
  ForSeeds(30, [](Random& random) {
    AddressRange range(KiB(64));
    AddressRange again(KiB(64));
    std::map<Bytes, Bytes> places;  // offset, size
    for (int i = 0; i < 500; ++i) {
      if (!places.empty() && random.OneIn(2)) {
        const auto place = std::next(places.begin(), random.Below(places.size()));
        range.Free(place->first, place->second);
        again.Free(place->first, place->second);
        places.erase(place);
        continue;
      }
      const Bytes size = Bytes(1 + random.Below(1 << (9 + random.Below(8)))).RoundUp(KiB(1));
      const Bytes offset = range.Allocate(size);
      EXPECT_EQ(again.Allocate(size), offset);
      const auto next = places.lower_bound(offset);
      if (next != places.end()) {
        ASSERT_LE(offset + size, next->first);
      }
      if (next != places.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second, offset);
      }
      places.emplace(offset, size);
    }
    for (const auto& [offset, size] : places) range.Free(offset, size);
    EXPECT_EQ(range.holes(), 1u);
    EXPECT_EQ(range.Allocate(range.end()), Bytes(0));
  });
}

}  // namespace
}  // namespace ravenstore::core::plan
