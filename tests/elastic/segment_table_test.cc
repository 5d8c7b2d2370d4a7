#include "elastic/segment_table.h"

#include <array>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::MiB;

constexpr CUdeviceptr kBegin = 1 << 30;

class SegmentTableTest : public testing::Test {
 protected:
  SegmentTableTest() { table_.Reserve(kBegin, MiB(16)); }
  // A segment at that place of the reservation, with parts there.
  SegmentTable::Pages Map(Bytes at, Bytes size, Part* part) {
    const SegmentTable::Pages pages = table_.Create(size);
    for (uint32_t page = pages.first; page < pages.second; ++page)
      table_.SetPart(PageId{page}, {part, false});
    SegmentTable::Reservation* with = table_.ReservationAt(kBegin + at.count(), size);
    ++with->segments;
    table_.Mapped(pages, kBegin + at.count(), with);
    return pages;
  }
  SegmentTable::Page& First(const SegmentTable::Pages& pages) {
    return table_.At(PageId{pages.first});
  }

  FakeContext context_;
  Driver driver_ = *LoadDriver(&FakeFunction);
  Streams streams_{&driver_};
  SegmentTable table_{MiB(2), &streams_};
  Part device_{Place::kDevice, MiB(2), 0, 0};
  Part host_{Place::kHost, MiB(2), 0, 0};
};

TEST_F(SegmentTableTest, AReservationHasAddressesWithinIt) {
  EXPECT_EQ(table_.ReservationAt(kBegin + 1, MiB(16)), nullptr);
  EXPECT_EQ(table_.ReservationAt(kBegin - 1, MiB(1)), nullptr);
  ASSERT_NE(table_.ReservationAt(kBegin + 1, MiB(1)), nullptr);
  EXPECT_EQ(table_.ReservationAt(kBegin + 1, MiB(1))->begin, kBegin);
  EXPECT_EQ(table_.ReservationOf({0, 0}), nullptr) << "no segment's";
  table_.Unreserve(kBegin);
  EXPECT_EQ(table_.ReservationAt(kBegin, MiB(1)), nullptr);
}

TEST_F(SegmentTableTest, PartsCountWhereTheyAre) {
  const SegmentTable::Pages pages = Map(MiB(4), MiB(3), &device_);
  EXPECT_EQ(pages.second - pages.first, 2u);
  EXPECT_EQ(table_.live(), MiB(3));
  EXPECT_EQ(table_.parts_on_device(), MiB(3));
  table_.SetPart(PageId{pages.first}, {&host_, true});
  EXPECT_EQ(table_.parts_on_device(), MiB(1));
  EXPECT_EQ(table_.away(), MiB(2));
  EXPECT_EQ(table_.AwayOf(pages), MiB(2));
  table_.Want(MiB(2));
  EXPECT_EQ(table_.on_device(), MiB(3));
  const auto mappings = table_.MappingsOf(pages, kBegin);
  EXPECT_EQ(mappings[0].part, &host_);
  EXPECT_EQ(mappings[1].at, kBegin + MiB(2).count());
}

TEST_F(SegmentTableTest, PagesOfASegmentThatHasEndedAreUsedAgain) {
  const SegmentTable::Pages pages = Map({}, MiB(4), &device_);
  table_.Pin(pages);
  table_.Hold(pages);
  table_.Unmapped(pages);
  for (uint32_t page = pages.first; page < pages.second; ++page) table_.SetPart(PageId{page}, {});
  table_.End(pages, MiB(4));
  EXPECT_EQ(table_.live(), Bytes{});
  EXPECT_EQ(table_.ReservationAt(kBegin, MiB(1))->segments, 0u);
  EXPECT_NE(table_.Create(MiB(2)), pages);
  EXPECT_EQ(table_.Create(MiB(4)), pages);
  EXPECT_FALSE(First(pages).pinned);
}

TEST_F(SegmentTableTest, TheLeastRecentPageLeavesAndTheMostRecentComes) {
  const SegmentTable::Pages first = Map({}, MiB(2), &device_);
  const SegmentTable::Pages second = Map(MiB(2), MiB(2), &device_);
  First(first).stamp = 2;
  First(second).stamp = 1;
  EXPECT_EQ(table_.Next(/*leaves=*/true, {}), PageId{second.first});
  EXPECT_FALSE(table_.Next(/*leaves=*/false, MiB(8)));
  for (const auto& pages : {first, second}) table_.SetPart(PageId{pages.first}, {&host_, true});
  EXPECT_EQ(table_.Next(/*leaves=*/false, MiB(8)), PageId{first.first});
  EXPECT_FALSE(table_.Next(/*leaves=*/false, MiB(1)));
}

TEST_F(SegmentTableTest, NoPageMovesThatACallUsesOrAnotherOfItsReservation) {
  const SegmentTable::Pages pages = Map({}, MiB(2), &device_);
  SegmentTable::Page* const page = &First(pages);
  EXPECT_TRUE(table_.CanMove(page));
  ++page->reservation->busy;
  EXPECT_FALSE(table_.CanMove(page));
  --page->reservation->busy;
  table_.Hold(pages);
  EXPECT_FALSE(table_.CanMove(page));
  table_.Unhold(pages);
  table_.BeginMoving(page);
  EXPECT_FALSE(table_.CanMove(page));
  EXPECT_TRUE(table_.IsMoving(pages));
  EXPECT_EQ(table_.moving(), 1u);
  EXPECT_EQ(page->reservation->moving, 1u);
  table_.EndMoving(page);
  EXPECT_TRUE(table_.CanMove(page));
  table_.Pin(pages);
  EXPECT_FALSE(table_.CanMove(page));
}

}  // namespace
}  // namespace ravenstore::elastic
