#include "elastic/range_table.h"

#include <vector>

#include "tests/elastic/ranges_fixture.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;

class RangeTableTest : public RangesFixture {
 protected:
  // A range that lives in a place of its own.
  uint32_t Create(Bytes size) {
    const uint32_t number = ranges_->New({.asked = size, .size = size});
    RAVEN_CHECK(memory_->open().Place(number, size, 0));
    ranges_->Begin(number);
    return number;
  }
  size_t Logged() {
    std::vector<LoggedCall> calls;
    memory_->open().TakeLog(&calls);
    return calls.size();
  }
};

TEST_F(RangeTableTest, ALiveRangeOwnsItsAddressesUntilItsEnd) {
  const uint32_t number = Create(kPart);
  const CUdeviceptr begin = (*ranges_)[number].begin;
  EXPECT_EQ(ranges_->At(begin), number);
  EXPECT_EQ(ranges_->At(begin + kPart.count() - 1), number);
  ranges_->End(number);
  EXPECT_EQ(ranges_->At(begin), Addresses::kNoOwner);
}

TEST_F(RangeTableTest, NumbersAreUsedAgain) {
  EXPECT_FALSE(ranges_->HasUnused());
  const uint32_t first = ranges_->New({.asked = kPart, .size = kPart});
  EXPECT_NE(first, Addresses::kNoOwner);
  EXPECT_TRUE(ranges_->HasUnused());
  ranges_->Recycle(first);
  EXPECT_EQ(ranges_->New({.asked = kPart, .size = kPart}), first);
  std::vector<uint32_t> numbers = {first};
  ranges_->Recycle(&numbers);
  EXPECT_TRUE(numbers.empty());
  EXPECT_EQ(ranges_->New({.asked = kPart, .size = kPart}), first);
}

TEST_F(RangeTableTest, CountsWhatLivesAndReportsEachPeak) {
  const uint32_t one = Create(kPart);
  const uint32_t other = Create(kPart * 2);
  EXPECT_EQ(grew_, (std::vector{kPart, kPart * 3}));
  ranges_->End(one);
  Create(kPart);
  EXPECT_EQ(grew_.size(), 2u) << "no more than before";
  EXPECT_EQ(ranges_->stats().live, kPart * 3);
  EXPECT_EQ(ranges_->stats().peak, kPart * 3);
  EXPECT_EQ(ranges_->LiveBytes(), kPart * 3);
  ranges_->End(other);
  EXPECT_EQ(ranges_->stats().live, kPart);
}

TEST_F(RangeTableTest, TheSchedulerLearnsOfTheLastHoldersEnd) {
  const uint32_t number = Create(kPart);
  ranges_->Hold(number);
  ranges_->Hold(number);
  EXPECT_EQ((*ranges_)[number].holders, 2u);
  (*ranges_)[number].holders = 0;
  ranges_->EndHold(number);
  EXPECT_EQ(Logged(), 1u) << "a put";
}

TEST_F(RangeTableTest, APinIsAHolderOnce) {
  const uint32_t number = Create(kPart);
  ranges_->Pin(number);
  ranges_->Pin(number);
  EXPECT_EQ((*ranges_)[number].holders, 1u);
  EXPECT_EQ(ranges_->stats().pinned, kPart);
  ranges_->End(number);
  EXPECT_EQ(ranges_->stats().pinned, Bytes{});
}

TEST_F(RangeTableTest, ASegmentHasPagesOfItsOwn) {
  const uint32_t number = ranges_->New({.asked = kPart, .size = kPart});
  (*ranges_)[number].pages = segments_.Create(kPart);
  ranges_->Begin(number);
  EXPECT_TRUE((*ranges_)[number].is_segment());
  EXPECT_EQ((*ranges_)[number].begin, 0u) << "it is mapped nowhere";
  EXPECT_EQ(ranges_->AwayOf(number), kPart);
  EXPECT_EQ(ranges_->LiveBytes(), kPart);
}

}  // namespace
}  // namespace ravenstore::elastic
