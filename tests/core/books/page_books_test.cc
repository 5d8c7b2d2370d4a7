#include "core/books/page_books.h"

#include "core/books/page_views.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/plan/residency_plan.h"

namespace ravenstore::core {
namespace {

using plan::MapChoice;
using plan::Unit;

constexpr Bytes kPage = MiB(2);

PageBooks::Options OptionsFor(Bytes copies_most) {
  return {.limits = {.page = kPage,
                     .pages = 2,
                     .pools = {{.capacity = copies_most, .in_rate = 1e9, .out_rate = 1e9}}},
          .coming_most = kPage * 2};
}

// Two pages may be held.
struct SmallStore {
  explicit SmallStore(Bytes copies_most) : books(OptionsFor(copies_most)) {}
  void MapFromSupply(Unit unit) {
    const auto source = books.view().supply.Find(plan::IsSlot(unit));
    ASSERT_TRUE(source);
    books.StartMap({.unit = unit, .from = MapChoice::From::kSupply, .source = *source});
    books.FinishMap(unit);
  }
  // A tensor that fills the page is created; it is idle.
  void Create(Unit page) {
    books.Ensure({page, 1});
    books.Pin(page);
    MapFromSupply(page);
    books.AddTensor(page, kPage);
    books.Unpin(page);
    books.Reach(page);
  }
  void CopyOut(Unit unit) {
    books.StartOut(unit, 0);
    books.FinishOut(unit, true);
  }

  PageBooks books;
};

class PageBooksTest : public testing::Test {
 protected:
  SmallStore store_{Bytes(UINT64_MAX)};
  PageBooks& books_ = store_.books;
};

TEST_F(PageBooksTest, APageLeavesAndComesBack) {
  store_.Create(0);
  EXPECT_TRUE(books_[0].IsDirty());
  store_.CopyOut(0);
  EXPECT_EQ(books_[0].life, PageState::kClean);
  EXPECT_EQ(books_.copies().pools().used(), kPage);
  books_.Drop(0);
  EXPECT_EQ(books_[0].life, PageState::kAway);
  EXPECT_TRUE(books_.Pin(0));  // a call waits
  store_.MapFromSupply(0);
  books_.StartIn(0);
  books_.FinishIn(0, true);
  EXPECT_FALSE(books_[0].demanded);
  std::vector<PageBooks::Arrival> arrivals;
  books_.TakeArrivals(&arrivals);
  ASSERT_EQ(arrivals.size(), 2u);  // created, and back
  EXPECT_TRUE(arrivals[1].demanded);
  CheckBooks(books_);
}

TEST_F(PageBooksTest, APageIsAwayAgainWhenItsMappingHasFailedOrItsCopyIsNotWanted) {
  store_.Create(0);
  store_.CopyOut(0);
  books_.Drop(0);
  for (const bool is_mapped : {false, true}) {
    books_.Demand(0);
    const auto source = books_.view().supply.Find(false);
    ASSERT_TRUE(source);
    EXPECT_FALSE(IsOnItsWay(books_, {0, 1}));
    books_.StartMap({.unit = 0, .from = MapChoice::From::kSupply, .source = *source});
    EXPECT_TRUE(IsOnItsWay(books_, {0, 1}));
    if (is_mapped) books_.FinishMap(0);
    books_.FinishIn(0, false);
    EXPECT_FALSE(IsOnItsWay(books_, {0, 1}));
    EXPECT_EQ(books_[0].life, PageState::kAway);
    EXPECT_EQ(books_[0].live, 1u);
    EXPECT_EQ(books_.copies().pools().coming(0), Bytes{});
    CheckBooks(books_);
  }
}

TEST_F(PageBooksTest, APageDoesNotComeWhileItsCopyIsUsedInPlace) {
  store_.Create(0);
  store_.CopyOut(0);
  books_.Drop(0);
  books_.Pin(0, true);
  books_.Pin(0, true);
  EXPECT_TRUE(books_.Pin(0));  // a call waits
  for (int use = 0; use < 2; ++use) {
    EXPECT_FALSE(books_.view().queues.Contains(plan::MoveQueues::Queue::kReturns, 0));
    EXPECT_FALSE(CanMoveOn(books_[0]));
    EXPECT_EQ(books_.totals()[UnitTotals::Sum::kAwaited], Bytes{});
    CheckBooks(books_);
    books_.Reach(0, true);
  }
  EXPECT_TRUE(books_.view().queues.Contains(plan::MoveQueues::Queue::kReturns, 0));
  EXPECT_EQ(books_.totals()[UnitTotals::Sum::kAwaited], kPage);
  CheckBooks(books_);
}

TEST_F(PageBooksTest, TensorsAreCreatedInTheCopyOfAnAwayPage) {
  books_.Ensure({0, 1});
  for (int tensor = 0; tensor < 2; ++tensor) {
    books_.Pin(0, true);
    books_.AddAwayTensor(0, 0, KiB(512));
    books_.Reach(0, true);
  }
  EXPECT_EQ(books_.copies().pools().used(), MiB(1));
  CheckBooks(books_);
  books_.Pin(0);
  store_.MapFromSupply(0);
  books_.StartIn(0);
  books_.FinishIn(0, true);
  EXPECT_EQ(books_[0].life, PageState::kClean);
  EXPECT_EQ(books_[0].live, 2u);
  CheckBooks(books_);
}

TEST_F(PageBooksTest, ACopyIsNoLargerForATensorInThePlaceOfAnother) {
  books_.Ensure({0, 1});
  books_.Pin(0, true);
  for (int tensor = 0; tensor < 3; ++tensor) {
    books_.AddAwayTensor(0, 0, MiB(1));
    EXPECT_EQ(books_.copies().pools().used(), MiB(tensor == 0 ? 1 : 2));
    if (tensor == 1) books_.RemoveTensor(0, MiB(1));
  }
  books_.AddAwayTensor(0, 0, MiB(1));  // one of the three ends later
  EXPECT_EQ(books_.copies().pools().used(), kPage);
  CheckBooks(books_);
}

// The plan expects the page on the device from its first get on.
TEST_F(PageBooksTest, APageThatIsUsedInPlaceTakesNoMemoryOfThePlan) {
  store_.Create(0);
  store_.CopyOut(0);
  books_.Drop(0);
  std::vector<plan::PlannedCall> calls(4);
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool gets = i % 2 == 0;
    calls[i] = {.kind = gets ? plan::CallKind::kGet : plan::CallKind::kPut,
                .unpins = !gets,
                .units = {0, 1}};
  }
  const auto free_after = [this](plan::Position call) {
    return books_.view().plan.SlackAt(call + 1) / static_cast<int64_t>(kPage.count());
  };
  books_.SetPlan(plan::ResidencyPlan::Make(calls, SnapshotOf(books_), books_.view().limits));
  EXPECT_EQ(free_after(0), 1);
  books_.Pin(0, true);
  books_.MoveTo(1);
  EXPECT_EQ(free_after(0), 2);
  EXPECT_EQ(free_after(1), 2);
  EXPECT_EQ(free_after(2), 1);
}

TEST_F(PageBooksTest, AChangeWhileACopyIsUnderWayMakesItUseless) {
  store_.Create(0);
  books_.StartOut(0, 0);
  books_.Pin(0);
  books_.Unpin(0);
  books_.Modify(0);
  books_.Reach(0);
  books_.FinishOut(0, true);
  EXPECT_TRUE(books_[0].IsDirty());
  EXPECT_EQ(books_.copies().pools().used(), Bytes{});
}

TEST_F(PageBooksTest, AFailedCopyInLeavesTheBytesWhereTheyWere) {
  store_.Create(0);
  store_.CopyOut(0);
  books_.Drop(0);
  books_.Demand(0);
  store_.MapFromSupply(0);
  books_.StartIn(0);
  books_.FinishIn(0, false);
  EXPECT_EQ(books_[0].life, PageState::kAway);
  EXPECT_EQ(books_.copies().pools().used(), kPage);
  EXPECT_FALSE(books_[0].demanded);
  CheckBooks(books_);
}

TEST_F(PageBooksTest, AFailedCopyInOfAPageInUseIsTriedAgain) {
  store_.Create(0);
  store_.CopyOut(0);
  books_.Drop(0);
  books_.Pin(0);
  store_.MapFromSupply(0);
  books_.StartIn(0);
  books_.FinishIn(0, false);
  EXPECT_EQ(books_[0].life, PageState::kQueued) << "a stream may touch the memory";
  CheckBooks(books_);
  books_.StartIn(0);
  books_.FinishIn(0, true);
  EXPECT_EQ(books_[0].life, PageState::kClean);
  CheckBooks(books_);
}

TEST_F(PageBooksTest, AContestedPageStaysUntilItsUseIsReported) {
  store_.Create(0);
  EXPECT_TRUE(books_[0].IsIdle());
  books_.SetContested(0, true);
  EXPECT_FALSE(books_[0].IsIdle());
  books_.Pin(0);
  books_.Unpin(0);
  books_.Reach(0);
  EXPECT_TRUE(books_[0].IsIdle());
}

TEST_F(PageBooksTest, AContestWithoutAUseEnds) {
  store_.Create(0);
  books_.SetContested(0, true);
  books_.SetContested(0, false);
  EXPECT_TRUE(books_[0].IsIdle());
}

TEST_F(PageBooksTest, ACreateNeedsAPageForEachUnitWhereNothingLives) {
  PageBooks books(OptionsFor(kPage));
  books.Ensure({0, 4});
  EXPECT_TRUE(decide::HasPlace(CreateIn(books, {0, 2})));  // of three places one stays free
  EXPECT_FALSE(decide::HasPlace(CreateIn(books, {0, 3})));
  books.Pin(0);
  EXPECT_TRUE(decide::HasPlace(CreateIn(books, {0, 2})));
  EXPECT_FALSE(decide::HasPlace(CreateIn(books, {2, 2})));
}

TEST_F(PageBooksTest, ACallCountsWhatOtherCallsHoldOnce) {
  PageBooks books(OptionsFor(kPage));
  books.Ensure({0, 4});
  books.Pin(0);
  const decide::PageCall call = CallIn(books, {0, 2});
  EXPECT_EQ(call.own, 2u);
  EXPECT_EQ(call.in_use, 2u);
  EXPECT_EQ(CallIn(books, {2, 1}).in_use, 2u);
  EXPECT_EQ(PagesInUse(books), 1u);
}

TEST(PageBooksCopiesTest, ACopyOfAResidentPageGivesItsRoomToAnother) {
  SmallStore store(kPage);
  store.Create(0);
  store.CopyOut(0);
  store.Create(2);
  EXPECT_TRUE(store.books.copies().pools().CanCopyOut(0, kPage));
  EXPECT_FALSE(store.books.copies().pools().HasRoom(0, store.books[2].bytes));
  EXPECT_EQ(CopyToDrop(store.books, 0), std::optional<Unit>(0));
  store.books.MoveCopy(0, plan::kNoPool);
  EXPECT_TRUE(store.books[0].IsDirty());
  store.CopyOut(2);
  store.books.Drop(2);
  EXPECT_FALSE(CopyToDrop(store.books, 0));
  EXPECT_FALSE(store.books.copies().pools().CanCopyOut(0, kPage));
  CheckBooks(store.books);
}

TEST(PageBooksCopiesTest, APoolThatShrinksKeepsItsCopies) {
  SmallStore store(kPage * 2);
  store.Create(0);
  store.CopyOut(0);
  store.books.Drop(0);
  store.Create(2);
  EXPECT_TRUE(decide::HasPlace(CreateIn(store.books, {4, 1})));
  store.books.SetPool(0, {.capacity = Bytes{}, .in_rate = 1, .out_rate = 1});
  EXPECT_EQ(store.books.copies().pools().used(), kPage);
  EXPECT_FALSE(store.books.copies().pools().HasRoom(0, kPage));
  EXPECT_FALSE(decide::HasPlace(CreateIn(store.books, {4, 1})));
  CheckBooks(store.books);
  store.books.RemoveTensor(0, kPage);
  store.books.SetPool(0, {.capacity = kPage, .in_rate = 1, .out_rate = 1});
  EXPECT_TRUE(store.books.copies().pools().HasRoom(0, kPage));
  CheckBooks(store.books);
}

TEST_F(PageBooksTest, APageThatIsDemandedComesUntilNothingLivesThere) {
  using Queue = plan::MoveQueues::Queue;
  store_.Create(0);
  books_.Demand(0);
  EXPECT_FALSE(books_[0].demanded);  // it is resident
  store_.CopyOut(0);
  books_.Drop(0);
  books_.Demand(0);
  EXPECT_EQ(books_.view().queues.First(Queue::kReturns)->need, plan::MoveQueues::kWaitedFor);
  EXPECT_EQ(books_.totals()[UnitTotals::Sum::kAwaited], kPage);
  CheckBooks(books_);
  books_.RemoveTensor(0, kPage);
  EXPECT_EQ(books_.totals()[UnitTotals::Sum::kAwaited], Bytes{});
  EXPECT_TRUE(books_.view().queues.IsEmpty(Queue::kCreated));
  CheckBooks(books_);
}

// The plan may have been begun before the tensor came.
TEST_F(PageBooksTest, APlanLeavesASlotItsSizeClass) {
  const std::vector<plan::PlannedCall> calls = {
      {.kind = plan::CallKind::kCreate, .units = {1, 1, 8}}};
  auto plan = plan::ResidencyPlan::Make(calls, {}, books_.view().limits);
  books_.Ensure({1, 1, 4});
  books_.Pin(1);
  books_.SetPlan(std::move(plan));
  EXPECT_EQ(books_[1].slots_per_page, 4u);
  store_.MapFromSupply(1);
  CheckBooks(books_);
}

TEST_F(PageBooksTest, ATensorOfAnAwayPageMayGetASlotWithACopyInTheSamePool) {
  const plan::UnitSpan slot{1, 1, 4};
  store_.Create(0);
  books_.Pin(0);
  books_.RemoveTensor(0, kPage);
  books_.AddTensor(0, KiB(512));
  books_.AddTensor(0, kPage - KiB(512));
  books_.Unpin(0);
  books_.Reach(0);
  store_.CopyOut(0);
  EXPECT_FALSE(CanMoveCopy(books_, {0, 1}, slot));  // it is resident
  books_.Drop(0);
  ASSERT_TRUE(CanMoveCopy(books_, {0, 1}, slot));
  books_.RemoveTensor(0, KiB(512), true);
  books_.Ensure(slot);
  books_.AddAwayTensor(1, 0, KiB(512));
  EXPECT_EQ(books_.copies().pools().used(), kPage);  // the page has the rest
  books_.RemoveTensor(0, kPage - KiB(512));
  EXPECT_EQ(books_.copies().pools().used(), KiB(512));
  EXPECT_EQ(books_[1].life, PageState::kAway);
  CheckBooks(books_);
  books_.Pin(1);
  store_.MapFromSupply(1);
  books_.StartIn(1);
  books_.FinishIn(1, true);
  EXPECT_EQ(books_[1].life, PageState::kClean);
  CheckBooks(books_);
}

TEST(PageBooksCopiesTest, ATensorMovesToASlotWhereThePoolIsFull) {
  SmallStore store(kPage);
  store.Create(0);
  store.CopyOut(0);
  store.books.Drop(0);
  EXPECT_TRUE(CanMoveCopy(store.books, {0, 1}, {1, 1, 4}));
}

}  // namespace
}  // namespace ravenstore::core
