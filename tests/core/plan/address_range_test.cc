#include "core/plan/address_range.h"

#include <gtest/gtest.h>

#include <ctime>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/core/plan/seeds.h"

namespace ravenstore::core::plan {
namespace {

TEST(AddressRangeTest, PlacesFollowEachOtherInUnitsOf512Bytes) {
  AddressRange range(KiB(64));
  EXPECT_EQ(range.Allocate({Bytes(1)}), Bytes(0));
  EXPECT_EQ(range.Allocate({Bytes(513)}), Bytes(512));
  EXPECT_EQ(range.Allocate({Bytes(512)}), Bytes(1536));
  EXPECT_EQ(range.end(), Bytes(2048));
}

TEST(AddressRangeTest, ASmallRequestTakesTheLowestHole) {
  AddressRange range(KiB(64));
  const Bytes first = range.Allocate({KiB(8)});
  range.Allocate({KiB(1)});
  const Bytes second = range.Allocate({KiB(4)});
  range.Allocate({KiB(1)});
  range.Free(first, KiB(8));
  range.Free(second, KiB(4));
  EXPECT_EQ(range.Allocate({KiB(3)}), first);
}

TEST(AddressRangeTest, ALargeRequestTakesTheHoleThatWasFreedLast) {
  AddressRange range(KiB(64));
  const Bytes first = range.Allocate({KiB(64)});
  range.Allocate({KiB(1)});
  const Bytes second = range.Allocate({KiB(80)});
  range.Allocate({KiB(1)});
  range.Free(first, KiB(64));
  range.Free(second, KiB(80));
  EXPECT_EQ(range.Allocate({KiB(64)}), second);
  EXPECT_EQ(range.Allocate({KiB(64)}), first);
}

TEST(AddressRangeTest, FreeNeighboursMerge) {
  AddressRange range(KiB(64));
  const Bytes a = range.Allocate({KiB(1)});
  const Bytes b = range.Allocate({KiB(1)});
  const Bytes c = range.Allocate({KiB(1)});
  range.Allocate({KiB(1)});
  range.Free(a, KiB(1));
  range.Free(c, KiB(1));
  EXPECT_EQ(range.holes(), 2u);
  range.Free(b, KiB(1));
  EXPECT_EQ(range.holes(), 1u);
  EXPECT_EQ(range.Allocate({KiB(3)}), a);
}

TEST(AddressRangeTest, GrowsFromTheHoleAtItsEnd) {
  AddressRange range(KiB(64));
  range.Allocate({KiB(1)});
  const Bytes last = range.Allocate({KiB(2)});
  range.Free(last, KiB(2));
  EXPECT_EQ(range.Allocate({KiB(5)}), last);
  EXPECT_EQ(range.end(), KiB(6));
}

TEST(AddressRangeTest, ARequestThatWouldSpanTooManyPagesBeginsAtABorder) {
  AddressRange range(KiB(64));
  range.Allocate({KiB(1)});
  EXPECT_EQ(range.Allocate({KiB(128), 3}), KiB(1));
  EXPECT_EQ(range.Allocate({KiB(128), 2}), KiB(192));
  EXPECT_EQ(range.end(), KiB(320));
  EXPECT_EQ(range.holes(), 1u);
  EXPECT_EQ(range.Allocate({KiB(63)}), KiB(129)) << "the bytes before the border are free";
  EXPECT_EQ(range.holes(), 0u);
}

TEST(AddressRangeTest, ARequestWithFewPagesIsPlacedInAHoleWithABorder) {
  AddressRange range(KiB(64));
  range.Allocate({KiB(32)});
  const Bytes wide = range.Allocate({KiB(192)});
  range.Allocate({KiB(1)});
  const Bytes narrow = range.Allocate({KiB(128)});
  range.Allocate({KiB(1)});
  range.Free(wide, KiB(192));
  range.Free(narrow, KiB(128));
  EXPECT_EQ(range.Allocate({KiB(128), 2}), KiB(64)) << "the hole that was freed last has no border";
  EXPECT_EQ(range.holes(), 3u);
  range.Free(KiB(64), KiB(128));
  EXPECT_EQ(range.holes(), 2u);
}

TEST(AddressRangeTest, APlaceThatOthersUseIsPassedOver) {
  AddressRange range(KiB(64));
  const Bytes low = range.Allocate({KiB(4)});
  range.Allocate({KiB(1)});
  const Bytes high = range.Allocate({KiB(4)});
  range.Allocate({KiB(1)});
  range.Free(low, KiB(4));
  range.Free(high, KiB(4));
  PlacesInUse others;
  others.Add(low, KiB(4), StreamId{1});
  AddressRange plain = range;
  EXPECT_EQ(plain.Allocate({KiB(4), UINT32_MAX, &others, StreamId{1}}), low);
  EXPECT_EQ(range.Allocate({KiB(4), UINT32_MAX, &others, StreamId{2}}), high);
  const Bytes end = range.end();
  EXPECT_FALSE(range.CanAllocate({KiB(4), UINT32_MAX, &others}, end));
  EXPECT_EQ(range.Allocate({KiB(4), UINT32_MAX, &others}), end);
  others.Remove(low, KiB(4), StreamId{1});
  EXPECT_EQ(range.Allocate({KiB(4), UINT32_MAX, &others}), low);
}

// The hole at the end is another stream's still: what is behind it was never anyone's.
TEST(AddressRangeTest, BehindOthersPlacesIsThePlaceWhereNothingEverWas) {
  AddressRange range(KiB(64));
  range.Allocate({KiB(1)});
  const Bytes last = range.Allocate({KiB(8)});
  range.Free(last, KiB(8));
  PlacesInUse others;
  others.Add(last, KiB(8), StreamId{1});
  const Bytes end = range.end();
  EXPECT_TRUE(range.CanAllocate({KiB(4), UINT32_MAX, &others}, end + KiB(4)));
  EXPECT_FALSE(range.CanAllocate({KiB(4), UINT32_MAX, &others}, end));
  EXPECT_EQ(range.Allocate({KiB(4), UINT32_MAX, &others}), end);
  EXPECT_EQ(range.Allocate({KiB(4)}), last);
}

TEST(AddressRangeTest, CanAllocateLooksAtThePlaceThatComesNext) {
  AddressRange range(KiB(64));
  EXPECT_TRUE(range.CanAllocate({KiB(128)}, KiB(128)));
  EXPECT_FALSE(range.CanAllocate({KiB(128)}, KiB(127)));
  EXPECT_FALSE(range.CanAllocate({Bytes(UINT64_MAX)}, KiB(128)));
  const Bytes first = range.Allocate({KiB(32)});
  EXPECT_TRUE(range.CanAllocate({KiB(64)}, KiB(96)));
  EXPECT_FALSE(range.CanAllocate({KiB(64), 1}, KiB(96))) << "it would begin at the border";
  range.Allocate({KiB(96)});
  EXPECT_FALSE(range.CanAllocate({KiB(32)}, KiB(128)));
  range.Free(first, KiB(32));
  EXPECT_TRUE(range.CanAllocate({KiB(32)}, KiB(128)));
  EXPECT_FALSE(range.CanAllocate({KiB(33)}, KiB(128)));
}

// The rule of address_range.h in few lines: each search looks at all holes.
class PlainRange {
 public:
  Bytes Allocate(Bytes size) {
    const Hole* best = nullptr;
    for (const Hole& hole : holes_) {
      if (hole.size < size) continue;
      if (best == nullptr || (size >= kLarge && hole.freed > best->freed)) best = &hole;
    }
    if (best == nullptr) return Grow(size);
    const Hole hole = *best;
    holes_.erase(hole);
    if (hole.size > size) holes_.insert({hole.offset + size, hole.size - size, hole.freed});
    return hole.offset;
  }
  void Free(Bytes offset, Bytes size) {
    Hole freed{offset, size, ++frees_};
    for (auto hole = holes_.begin(); hole != holes_.end();) {
      const bool before = hole->offset + hole->size == offset;
      const bool after = offset + size == hole->offset;
      if (before) freed.offset = hole->offset;
      if (before || after) freed.size += hole->size;
      hole = before || after ? holes_.erase(hole) : std::next(hole);
    }
    holes_.insert(freed);
  }
  size_t holes() const { return holes_.size(); }

  static constexpr Bytes kLarge = KiB(64);

 private:
  struct Hole {
    Bytes offset;
    Bytes size;
    uint64_t freed;
    bool operator<(const Hole& other) const { return offset < other.offset; }
  };

  Bytes Grow(Bytes size) {
    Bytes offset = end_;
    if (!holes_.empty() && holes_.rbegin()->offset + holes_.rbegin()->size == end_) {
      offset = holes_.rbegin()->offset;
      holes_.erase(std::prev(holes_.end()));
    }
    end_ = offset + size;
    return offset;
  }

  std::set<Hole> holes_;
  Bytes end_;
  uint64_t frees_ = 0;
};

TEST(AddressRangeTest, RandomProgramsGetThePlacesOfAPlainSearch) {
  ForSeeds(50, [](Random& random) {
    AddressRange range(PlainRange::kLarge);
    PlainRange plain;
    std::vector<std::pair<Bytes, Bytes>> places;  // offset, size
    // Few distinct sizes give equal holes; most programs have fragments of all sizes.
    const Bytes unit = random.OneIn(4) ? KiB(32) : Bytes(512);
    for (int i = 0; i < 1000; ++i) {
      const bool grows = i % 250 < 125;
      if (!places.empty() && random.Below(8) < (grows ? 3 : 5)) {
        std::swap(places[random.Below(places.size())], places.back());
        const auto [offset, size] = places.back();
        places.pop_back();
        range.Free(offset, size);
        plain.Free(offset, size);
      } else {
        const Bytes size = Bytes(1 + random.Below(1 << random.Below(18))).RoundUp(unit);
        const Bytes limit(random.Below(2 * range.end().count() + 1));
        const bool fits = range.CanAllocate({size}, limit);
        places.emplace_back(range.Allocate({size}), size);
        ASSERT_EQ(fits, places.back().first + size <= limit);
        ASSERT_EQ(plain.Allocate(size), places.back().first);
      }
      ASSERT_EQ(range.holes(), plain.holes());
    }
    // A copy continues as its original does.
    AddressRange copy = range;
    for (uint64_t kib = 1; kib <= 256; kib *= 2)
      EXPECT_EQ(copy.Allocate({KiB(kib)}), range.Allocate({KiB(kib)}));
  });
}

TEST(AddressRangeTest, RandomProgramsSpanFewPagesWhereTheyMust) {
  ForSeeds(20, [](Random& random) {
    AddressRange range(KiB(64));
    std::set<std::pair<Bytes, Bytes>> places;  // offset, size
    for (int i = 0; i < 500; ++i) {
      if (!places.empty() && random.OneIn(2)) {
        const auto which = std::next(places.begin(), static_cast<int>(random.Below(places.size())));
        range.Free(which->first, which->second);
        places.erase(which);
        continue;
      }
      const Bytes size = Bytes(1 + random.Below(1 << random.Below(18))).RoundUp(Bytes(512));
      const uint64_t least = size.RoundUp(KiB(64)).count() / KiB(64).count();
      const bool limits = random.OneIn(2);
      const Bytes at = range.Allocate({size, limits ? static_cast<uint32_t>(least) : UINT32_MAX});
      const Bytes end = (at + size).RoundUp(KiB(64));
      EXPECT_LE((end - at.RoundDown(KiB(64))).count() / KiB(64).count(),
                limits ? least : least + 1);
      const auto next = places.lower_bound({at, Bytes{}});
      if (next != places.end()) {
        EXPECT_LE(at + size, next->first);
      }
      if (next != places.begin()) {
        EXPECT_LE(std::prev(next)->first + std::prev(next)->second, at);
      }
      places.insert({at, size});
    }
    for (const auto& [offset, size] : places) range.Free(offset, size);
    EXPECT_LE(range.holes(), 1u);
  });
}

// A search that looks at each hole that fits takes more than a minute.
TEST(AddressRangeTest, ManyEqualHolesAreFilledFast) {
  constexpr int kHoles = 32'000;
  for (const Bytes size : {KiB(1), KiB(64)}) {
    AddressRange range(KiB(64));
    for (int i = 0; i < 2 * kHoles; ++i) range.Allocate({size});
    for (uint64_t i = 0; i < kHoles; ++i) range.Free(size * (2 * i), size);
    ASSERT_EQ(range.holes(), size_t{kHoles});
    const std::clock_t begin = std::clock();
    for (int i = 0; i < kHoles; ++i) range.Allocate({size});
    EXPECT_LT(std::clock() - begin, 5 * CLOCKS_PER_SEC);
    EXPECT_EQ(range.holes(), 0u);
  }
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
      const Bytes offset = range.Allocate({size});
      EXPECT_EQ(again.Allocate({size}), offset);
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
    EXPECT_EQ(range.Allocate({range.end()}), Bytes(0));
  });
}

}  // namespace
}  // namespace ravenstore::core::plan
