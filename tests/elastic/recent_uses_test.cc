#include "elastic/recent_uses.h"

#include <gtest/gtest.h>

#include "core/plan/move_chooser.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::MiB;
using core::PageBooks;
using core::PageState;
using core::plan::MapChoice;
using core::plan::Unit;

constexpr Bytes kPage = MiB(2);

// Two pages may be held.
class RecentUsesTest : public testing::Test {
 protected:
  // A tensor that fills the page, on the device.
  void Create(Unit unit) {
    books_.Ensure({unit, 1});
    books_.Pin(unit);
    const auto source = books_.view().supply.Find(false);
    ASSERT_TRUE(source);
    books_.StartMap({.unit = unit, .from = MapChoice::From::kSupply, .source = *source});
    books_.FinishMap(unit);
    books_.AddTensor(unit, kPage);
    books_.Unpin(unit);
    books_.Reach(unit);
  }
  void SendAway(Unit unit) {
    books_.StartOut(unit, 0);
    books_.FinishOut(unit, true);
    books_.Drop(unit);
  }

  PageBooks books_{{.limits = {.page = kPage,
                               .pages = 2,
                               .pools = {{.in_rate = 1e9, .out_rate = 1e9}},
                               .in_place = true},
                    .coming_most = kPage}};
  RecentUses recent_;
};

TEST_F(RecentUsesTest, APageComesWhereMemoryIsFree) {
  Create(0);
  SendAway(0);
  EXPECT_FALSE(recent_.Move(&books_, 1)) << "it was not used";
  recent_.Used(0, 1, true);
  EXPECT_TRUE(recent_.Move(&books_, 2));
  EXPECT_TRUE(books_[0].demanded);
  EXPECT_FALSE(recent_.Move(&books_, 2)) << "it comes already";
}

TEST_F(RecentUsesTest, APageThatKernelsUseInPlaceDoesNotComeBeforeTheyEnd) {
  Create(0);
  SendAway(0);
  recent_.Used(0, 1, true);
  books_.Pin(0, true);
  EXPECT_FALSE(recent_.Move(&books_, 2));
  books_.Reach(0, true);
  EXPECT_TRUE(recent_.Move(&books_, 2));
}

TEST_F(RecentUsesTest, APageIsExchangedForOneThatWasNotUsedForTwiceAsLong) {
  Create(0);
  SendAway(0);
  for (const Unit unit : {2, 4}) {
    Create(unit);
    recent_.Created(unit, 50);
  }
  recent_.Created(0, 40);
  recent_.Used(0, 60, true);
  EXPECT_FALSE(recent_.Move(&books_, 90)) << "too soon";
  recent_.Used(0, 110, true);
  recent_.Used(0, 130, true);
  EXPECT_TRUE(recent_.Move(&books_, 131));
  EXPECT_NE(books_[2].forced, books_[4].forced);
}

TEST_F(RecentUsesTest, APageThatDiedIsForgotten) {
  Create(0);
  SendAway(0);
  recent_.Used(0, 1, true);
  books_.RemoveTensor(0, kPage);
  EXPECT_FALSE(recent_.Move(&books_, 2));
  EXPECT_FALSE(books_[0].demanded);
}

}  // namespace
}  // namespace ravenstore::elastic
