#include "core/away_pool.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace ravenstore::core {
namespace {

void GrowBy(AwayPool& pool, Bytes size) {
  pool.Grown(pool.Grow(size));
}

TEST(AwayPoolTest, GrowsAtItsEnd) {
  AwayPool pool(KiB(64));
  EXPECT_EQ(pool.Allocate(KiB(1), 0), std::nullopt);
  EXPECT_EQ(pool.Grow(KiB(8)), (Range{KiB(0), KiB(8)}));
  EXPECT_TRUE(pool.IsGrowing());
  EXPECT_EQ(pool.committed(), KiB(8));
  EXPECT_EQ(pool.size(), KiB(0));
  pool.Grown({KiB(0), KiB(8)});
  EXPECT_FALSE(pool.IsGrowing());
  EXPECT_EQ(pool.Grow(KiB(4)), (Range{KiB(8), KiB(4)}));
  pool.GrowFailed();
  EXPECT_EQ(pool.committed(), KiB(8));
  EXPECT_EQ(pool.Grow(KiB(2)), (Range{KiB(8), KiB(2)}));
  pool.Grown({KiB(8), KiB(2)});
  EXPECT_EQ(pool.LargestHole(), KiB(10));  // an extent may lie in several chunks
  pool.CheckInvariants();
}

TEST(AwayPoolTest, ShrinksFromItsEndAsFarAsNothingLivesThere) {
  AwayPool pool(KiB(64));
  for (int i = 0; i < 3; ++i) GrowBy(pool, KiB(4));
  const auto first = pool.Allocate(KiB(5), 0);
  EXPECT_EQ(pool.Shrink(), (Range{KiB(8), KiB(4)}));
  EXPECT_EQ(pool.size(), KiB(8));
  EXPECT_EQ(pool.leaving(), KiB(4));
  EXPECT_EQ(pool.committed(), KiB(12));
  EXPECT_EQ(pool.Shrink(), std::nullopt);
  EXPECT_EQ(pool.LargestHole(), KiB(3));  // what leaves takes nothing more
  pool.CheckInvariants();
  pool.Free(*first);
  EXPECT_EQ(pool.Shrink(), (Range{KiB(4), KiB(4)}));
  pool.Shrunk({KiB(8), KiB(4)});
  pool.Shrunk({KiB(4), KiB(4)});
  EXPECT_EQ(pool.committed(), KiB(4));
  GrowBy(pool, KiB(2));
  EXPECT_EQ(pool.size(), KiB(6));
  pool.CheckInvariants();
}

TEST(AwayPoolTest, ItKnowsWhichChunksThereAre) {
  AwayPool pool(KiB(64));
  EXPECT_FALSE(pool.Has(KiB(0)));
  pool.Grow(KiB(4));
  EXPECT_EQ(pool.coming(), (Range{KiB(0), KiB(4)}));
  EXPECT_TRUE(pool.Has(KiB(0))) << "being made";
  EXPECT_EQ(pool.OpenAt(KiB(0)), std::nullopt);
  pool.Grown({KiB(0), KiB(4)});
  GrowBy(pool, KiB(4));
  EXPECT_EQ(pool.OpenAt(KiB(4)), (Range{KiB(4), KiB(4)}));
  EXPECT_EQ(pool.OpenAt(KiB(2)), std::nullopt) << "none begins there";
  pool.Close({KiB(4), KiB(4)});
  EXPECT_EQ(pool.OpenAt(KiB(4)), std::nullopt);
  EXPECT_TRUE(pool.Has(KiB(4)));
  pool.LetGo({KiB(4), KiB(4)});
  EXPECT_FALSE(pool.Has(KiB(4)));
  pool.Shrunk({KiB(4), KiB(4)});
  pool.Grow(KiB(4));
  pool.GrowFailed();
  EXPECT_FALSE(pool.Has(KiB(4)));
  pool.CheckInvariants();
}

TEST(AwayPoolTest, AnyChunkCanBeEmptiedAndGoesOrOpensAgain) {
  AwayPool pool(KiB(64));
  for (int i = 0; i < 3; ++i) GrowBy(pool, KiB(4));
  const auto first = *pool.Allocate(KiB(4), 1);
  const auto second = *pool.Allocate(KiB(3), 2);
  const Range middle{KiB(4), KiB(4)};
  pool.Close(middle);
  EXPECT_EQ(pool.chunks(), (std::vector<Range>{{KiB(0), KiB(4)}, {KiB(8), KiB(4)}}));
  EXPECT_EQ(pool.closed(), std::vector{middle});
  EXPECT_EQ(pool.size(), KiB(8));
  EXPECT_EQ(pool.committed(), KiB(12));
  EXPECT_EQ(pool.LargestHole(), KiB(4)) << "nothing new lies in a closed chunk";
  EXPECT_FALSE(pool.IsEmptied(middle));
  EXPECT_EQ(pool.OwnerOf(pool.At(KiB(5))), 2u);
  pool.CheckInvariants();
  pool.Open(middle);
  EXPECT_EQ(pool.size(), KiB(12));
  EXPECT_EQ(pool.LargestHole(), KiB(5));
  pool.Close(middle);
  pool.Free(second);
  EXPECT_TRUE(pool.IsEmptied(middle));
  pool.LetGo(middle);
  EXPECT_EQ(pool.leaving(), KiB(4));
  pool.Shrunk(middle);
  EXPECT_EQ(pool.committed(), KiB(8));
  EXPECT_EQ(pool.Grow(KiB(8)), (Range{KiB(4), KiB(4)})) << "the lowest addresses, and no more";
  pool.Grown(middle);
  pool.Free(first);
  pool.CheckInvariants();
}

TEST(AwayPoolTest, AnEmptyPoolHasNothingToGiveBack) {
  AwayPool pool(KiB(64));
  EXPECT_EQ(pool.Shrink(), std::nullopt);
  GrowBy(pool, KiB(4));
  EXPECT_EQ(pool.Shrink(), (Range{KiB(0), KiB(4)}));
  EXPECT_EQ(pool.Shrink(), std::nullopt);
  pool.CheckInvariants();
}

TEST(AwayPoolTest, PlacesAreMultiplesOfThePoolsGranularity) {
  AwayPool pool(KiB(64), KiB(4));
  pool.Grown(pool.Grow(KiB(64)));
  const auto first = pool.Allocate(Bytes(1), 1);
  const auto second = pool.Allocate(KiB(4) + Bytes(1), 2);
  const auto third = pool.Allocate(KiB(4), 3);
  ASSERT_TRUE(first && second && third);
  EXPECT_EQ(pool.OffsetOf(*second), KiB(4));
  EXPECT_EQ(pool.OffsetOf(*third), KiB(12));
  pool.Free(*second);
  const auto fourth = pool.Allocate(Bytes(512), 4);
  ASSERT_TRUE(fourth);
  EXPECT_EQ(pool.OffsetOf(*fourth), KiB(4));
  EXPECT_EQ(pool.used(), KiB(12));
}

}  // namespace
}  // namespace ravenstore::core
