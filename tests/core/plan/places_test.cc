#include "core/plan/places.h"

#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "tests/core/plan/seeds.h"

namespace ravenstore::core::plan {
namespace {

TEST(PlacesTest, LargeTensorsShareTheirBorderPages) {
  Places places({.page = MiB(2)});
  const Place first = places.Allocate(MiB(3));
  const Place second = places.Allocate(MiB(2));
  const UnitSpan a = places.UnitsOf(first, MiB(3));
  const UnitSpan b = places.UnitsOf(second, MiB(2));
  EXPECT_EQ(a.count, 2u);
  EXPECT_EQ(b.count, 2u);
  EXPECT_EQ(a[1], b[0]);
  EXPECT_EQ(places.BytesIn(first, MiB(3), 0), MiB(2));
  EXPECT_EQ(places.BytesIn(first, MiB(3), 1), MiB(1));
  EXPECT_EQ(places.BytesIn(second, MiB(2), 0), MiB(1));
}

TEST(PlacesTest, ATensorThatWouldSpanMoreThanItMayBeginsWithAPage) {
  Places places({.page = MiB(2)});
  places.SetMost(2);
  places.Allocate(MiB(1));
  const Place shares = places.Allocate(MiB(2));
  EXPECT_EQ(shares.at, MiB(1).count());
  const Place whole = places.Allocate(MiB(4));
  EXPECT_EQ(places.UnitsOf(whole, MiB(4)).count, 2u);
  EXPECT_EQ(places.OffsetOf(whole), Bytes{});
  EXPECT_EQ(places.Allocate(MiB(1)).at, MiB(3).count());
}

TEST(PlacesTest, SmallTensorsHaveASlotEach) {
  Places places({.page = MiB(2), .largest_slot = MiB(2)});
  const Place slot = places.Allocate(KiB(64));
  const UnitSpan units = places.UnitsOf(slot, KiB(64));
  EXPECT_EQ(units.count, 1u);
  EXPECT_EQ(units.slots_per_page, 32u);
  EXPECT_TRUE(IsSlot(units.first));
  EXPECT_EQ(places.BytesIn(slot, KiB(64), 0), KiB(64));
  const Place whole = places.Allocate(MiB(2));
  EXPECT_EQ(places.UnitsOf(whole, MiB(2)).slots_per_page, 1u);
  EXPECT_TRUE(places.UnitsOf(whole, MiB(2)).is_slot());
  const Place large = places.Allocate(MiB(3));
  EXPECT_EQ(places.UnitsOf(large, MiB(3)).slots_per_page, 1u);
  EXPECT_FALSE(places.UnitsOf(large, MiB(3)).is_slot());
}

TEST(PlacesTest, ASlotIsTakenForTensorsOfItsSizeClassAlone) {
  Places places({.page = MiB(2), .largest_slot = MiB(2)});
  const Place slot = places.Allocate(KiB(64));
  const Place in_range = places.Allocate(MiB(3));
  EXPECT_FALSE(places.AllocateAt(slot, KiB(64)));  // it is not free
  places.Free(slot, KiB(64));
  places.Free(in_range, MiB(3));
  EXPECT_FALSE(places.AllocateAt(slot, KiB(128)));
  EXPECT_FALSE(places.AllocateAt(in_range, MiB(3)));
  EXPECT_TRUE(places.AllocateAt(slot, KiB(64)));
}

// Whatever lives has bytes of its own in each of its units, and no slot is shared.
TEST(PlacesTest, RandomProgramsKeepLiveTensorsApart) {
  ForSeeds(20, [](Random& random) {
    Places places({.page = MiB(2), .largest_slot = random.OneIn(2) ? MiB(2) : Bytes{}});
    std::vector<std::pair<Place, Bytes>> live;
    for (int i = 0; i < 300; ++i) {
      if (!live.empty() && random.OneIn(3)) {
        const size_t which = random.Below(live.size());
        places.Free(live[which].first, live[which].second);
        live.erase(live.begin() + static_cast<ptrdiff_t>(which));
      } else {
        const Bytes size = KiB(1 + random.Below(1 << random.Below(13)));
        live.emplace_back(places.Allocate(size), size);
      }
    }
    std::set<std::pair<uint64_t, uint64_t>> ranges;  // end, begin
    std::set<Unit> slots;
    for (const auto& [place, size] : live) {
      const UnitSpan units = places.UnitsOf(place, size);
      Bytes sum;
      for (uint32_t k = 0; k < units.count; ++k) sum += places.BytesIn(place, size, k);
      EXPECT_EQ(sum, size);
      if (units.is_slot()) {
        EXPECT_TRUE(slots.insert(units.first).second);
        continue;
      }
      const auto above = ranges.upper_bound({place.at, UINT64_MAX});
      if (above != ranges.end()) {
        EXPECT_LE(place.at + size.count(), above->second);
      }
      ranges.insert({place.at + size.count(), place.at});
    }
  });
}

}  // namespace
}  // namespace ravenstore::core::plan
