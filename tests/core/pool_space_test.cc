#include "core/pool_space.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

using std::chrono::seconds;

constexpr Tick kUntil{seconds(10)};
const Range kFirst{MiB(0), MiB(4)};
const Range kSecond{MiB(4), MiB(4)};

class PoolSpaceTest : public testing::Test {
 protected:
  void Add(const Range& slab) {
    space_.Await(slab.second);
    EXPECT_EQ(space_.awaited(), slab.second);
    space_.Came(slab);
    EXPECT_EQ(space_.awaited(), Bytes{0});
  }
  ~PoolSpaceTest() override { space_.CheckInvariants(); }

  PoolSpace space_{MiB(64)};
};

TEST_F(PoolSpaceTest, ASlabIsClosedEmptiedLetGoAndGone) {
  Add(kFirst);
  Add(kSecond);
  const auto first = *space_.Allocate(MiB(4), 1);
  const auto second = *space_.Allocate(MiB(2), 2);
  space_.Close(kSecond);
  EXPECT_EQ(space_.slabs(), std::vector{kFirst});
  EXPECT_FALSE(space_.Allocate(MiB(1), 3)) << "nothing new lies in a closed slab";
  EXPECT_FALSE(space_.IsEmptied(kSecond));
  space_.Free(second);
  EXPECT_TRUE(space_.IsEmptied(kSecond));
  space_.LetGo(kSecond, kUntil);
  EXPECT_TRUE(space_.closed().empty());
  EXPECT_EQ(space_.NoteOverdue(kUntil - seconds(1)), Bytes{0});
  EXPECT_EQ(space_.NoteOverdue(kUntil), MiB(4));
  EXPECT_EQ(space_.NoteOverdue(kUntil), Bytes{0}) << "once";
  const auto gone = space_.Gone(kSecond.first);
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->size, MiB(4));
  EXPECT_TRUE(gone->overdue);
  EXPECT_FALSE(space_.Gone(kSecond.first));
  EXPECT_EQ(space_.held(), MiB(4));
  Add(kSecond);  // the addresses are used again
  space_.Free(first);
}

TEST_F(PoolSpaceTest, TheFirstSlabComesInTheMiddleAndTheNextBehindFreeRoom) {
  auto place = space_.PlaceForSlab(MiB(3), MiB(2));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->offset, MiB(32));
  EXPECT_EQ(place->missing, MiB(4)) << "in whole granules";
  EXPECT_EQ(place->room, MiB(32));
  EXPECT_EQ(place->reach, Range(MiB(32), MiB(4)));
  Add({MiB(32), MiB(8)});
  const auto block = *space_.Allocate(MiB(5), 1);
  place = space_.PlaceForSlab(MiB(7), MiB(2));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->offset, MiB(40));
  EXPECT_EQ(place->missing, MiB(4)) << "3 MiB before it are free";
  EXPECT_EQ(place->reach, Range(MiB(37), MiB(7)));
  space_.Free(block);
}

TEST_F(PoolSpaceTest, WhatFindsNoPlaceBehindTheFirstSlabComesBelowIt) {
  Add({MiB(32), MiB(32)});
  const auto block = *space_.Allocate(MiB(32), 1);
  const auto place = space_.PlaceForSlab(MiB(30), MiB(2));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->offset, Bytes{0});
  EXPECT_FALSE(space_.PlaceForSlab(MiB(33), MiB(2)));
  space_.Free(block);
}

TEST_F(PoolSpaceTest, AClosedSlabOpensAgain) {
  Add(kFirst);
  const auto block = *space_.Allocate(MiB(1), 1);
  space_.Close(kFirst);
  EXPECT_FALSE(space_.Allocate(MiB(1), 2));
  space_.Open(kFirst);
  EXPECT_TRUE(space_.Allocate(MiB(3), 2));
  EXPECT_EQ(space_.slabs(), std::vector{kFirst});
  EXPECT_EQ(space_.SizeOf(block), MiB(1));
}

TEST_F(PoolSpaceTest, AfterOneThatFailedSlabsAreSmallerUntilOthersCome) {
  space_.Await(MiB(16));
  EXPECT_EQ(space_.Failed(MiB(2), MiB(2)), MiB(16));
  EXPECT_EQ(space_.awaited(), Bytes{0});
  EXPECT_EQ(space_.most(), MiB(8));
  space_.Await(MiB(3));
  space_.Failed(MiB(2), MiB(2));
  EXPECT_EQ(space_.most(), MiB(2)) << "no less than that";
  Add(kFirst);
  EXPECT_EQ(space_.most(), MiB(4));
}

}  // namespace
}  // namespace ravenstore::core
